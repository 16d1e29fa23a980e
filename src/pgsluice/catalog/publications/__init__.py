"""The server's publications: what they send, and the managed publications that pgsluice creates."""
