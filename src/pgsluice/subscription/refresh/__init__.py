"""Catalog refreshes: what has changed in the source's catalog since the last one, and what
follows."""
