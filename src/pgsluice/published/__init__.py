"""What the publications send now: tables, their keys, and the rules of our own publications."""
