"""Delta tables with rules of others, which deltalake knows: its MERGE, and its upkeep."""
