"""How many examples properties have: a third of their full number, or a multiple of it.

``make test`` runs a third. ``make properties`` runs ten times the full number. Hypothesis draws
other examples in each run.
"""

from __future__ import annotations

import os

_FACTOR = float(os.environ.get("PGSLUICE_TEST_EXAMPLES", "0.33"))


def examples(full: int = 100) -> int:
    """``max_examples`` of a property whose full number is this one."""
    return max(1, round(full * _FACTOR))
