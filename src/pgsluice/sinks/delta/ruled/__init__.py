"""Delta tables with rules of others, such as constraints, which deltalake's MERGE enforces."""
