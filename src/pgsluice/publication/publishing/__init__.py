"""What publications do: which rules act on a table, and its changes by these rules."""
