"""Metrics, status and health: what pgsluice says of itself, for people and for programs."""
