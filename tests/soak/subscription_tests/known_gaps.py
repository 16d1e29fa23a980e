"""The scenarios that do not end as PostgreSQL's files expect, and why."""

from __future__ import annotations

from collections.abc import Mapping

_LEAVES = "no key holds for all leaves of the one target, so that it is parked, with what to do"

SERVER_GAPS: Mapping[str, str] = {
    "031 leaves with other identities and lists": _LEAVES,
    "031 lists of leaves without the root's column": _LEAVES,
}
"""With the server's publications only."""


def known_gap(name: str, *, is_own: bool) -> str:
    """Why a scenario fails; empty where it should pass."""
    return "" if is_own else SERVER_GAPS.get(name, "")
