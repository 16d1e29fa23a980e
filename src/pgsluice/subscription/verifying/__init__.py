"""Compares the tables that a catalog refresh found suspicious with their targets, while the run
continues."""
