"""Executes the SQL statements of publications: parses, looks names up, checks, executes."""
