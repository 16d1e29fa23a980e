"""Partitions: which there are, their bounds and sizes, and which are new."""
