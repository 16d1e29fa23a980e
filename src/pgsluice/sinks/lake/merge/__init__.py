"""Merges net changes into a version of a table: which rows go, and which are written."""
