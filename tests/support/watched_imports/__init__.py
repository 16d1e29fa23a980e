"""Watches which modules a process first imports in another thread than its main one.

Two threads that import modules which import each other get some of them half made.
"""

from __future__ import annotations

from pathlib import Path


def watching(path: Path) -> dict[str, str]:
    """The environment of a process that notes such modules in a file: see ``sitecustomize.py``."""
    return {"PYTHONPATH": str(Path(__file__).parent), "WATCHED_IMPORTS": str(path)}


def imported_by_threads(path: Path) -> list[str]:
    """The modules that were noted."""
    return path.read_text().splitlines() if path.exists() else []
