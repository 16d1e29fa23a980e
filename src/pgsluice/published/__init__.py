"""What the publications send now: tables, their keys, and the rules of pgsluice's own
publications."""
