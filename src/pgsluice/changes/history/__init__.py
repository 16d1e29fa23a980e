"""Histories: their columns, and the versions of rows that changes make."""
