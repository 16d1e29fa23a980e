"""The server's publications: what they send, and those that pgsluice makes."""
