"""Compares tables with their targets at one position."""
