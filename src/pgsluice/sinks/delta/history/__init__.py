"""Delta tables that are histories."""
