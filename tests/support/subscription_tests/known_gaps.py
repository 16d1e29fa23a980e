"""The scenarios that fail today, and why."""

from __future__ import annotations

from collections.abc import Mapping

_KEY = "a table whose key moves is parked, not copied"
_LEAVES = "the error does not say that the leaves have different keys"

GAPS: Mapping[str, str] = {
    "031 the key moves to another column of the list": _KEY,
    "031 the key becomes wider and changes its order": _KEY,
    "100 another index as identity": _KEY,
    "100 a schema is renamed and made again in one transaction": "a new name has no target",
}
SERVER_GAPS: Mapping[str, str] = {
    "031 leaves with other identities and lists": _LEAVES,
    "031 lists of leaves without the root's column": _LEAVES,
}
"""With the server's publications only."""
OWN_GAPS: Mapping[str, str] = {
    "031 leaves with other identities through the root": _LEAVES,
}
"""With publications of pgsluice's own only."""


def known_gap(name: str, *, is_own: bool) -> str:
    """Why a scenario fails; empty where it should pass."""
    return GAPS.get(name, "") or (OWN_GAPS if is_own else SERVER_GAPS).get(name, "")
