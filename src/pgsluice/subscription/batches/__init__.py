"""A batch on the driver: where it ends, which tables have work, and what became of it."""
