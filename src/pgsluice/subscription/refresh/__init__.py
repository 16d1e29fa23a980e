"""Looks at the source's catalog: what has changed of the tables, and what follows."""
