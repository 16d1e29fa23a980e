"""The layout of a table: which rows share files, and in which order files have their rows."""
