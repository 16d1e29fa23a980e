"""Batches on the driver: where one ends, which tables have work, and what their results mean."""
