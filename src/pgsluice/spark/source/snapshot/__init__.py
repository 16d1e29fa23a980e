"""Reads the rows of a table at one position, for a batch query or at the start of a stream."""
