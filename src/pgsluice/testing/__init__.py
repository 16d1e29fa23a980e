"""Builders and contract tests, for pgsluice and for sinks of other packages."""
