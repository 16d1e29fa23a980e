"""Tables: their columns, keys, definitions and locks."""
