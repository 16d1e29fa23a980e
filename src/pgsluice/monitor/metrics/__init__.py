"""Metrics, health and the status page by HTTP: their names, their sources, and their server."""
