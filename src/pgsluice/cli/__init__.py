"""The command line: one module for each command."""

from pgsluice.cli.app import main

__all__ = ["main"]
