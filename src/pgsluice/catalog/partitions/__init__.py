"""Partitions: their names, bounds and sizes, and which of them are new."""
