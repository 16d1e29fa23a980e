"""Copies of tables: which is next, what is read of it, and what became of it."""
