"""The scenarios that fail today, and why."""

from __future__ import annotations

from collections.abc import Mapping

GAPS: Mapping[str, str] = {}
OWN_GAPS: Mapping[str, str] = {}
"""With publications of pgsluice's own only."""


def known_gap(name: str, *, is_own: bool) -> str:
    """Why a scenario fails; empty where it should pass."""
    return GAPS.get(name, "") or (OWN_GAPS.get(name, "") if is_own else "")
