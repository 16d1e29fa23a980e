"""Metrics and health of a run by HTTP: their names, their sources, and their server."""
