"""Initial copies: which table is next and why, when a task may start, and what its result means."""
