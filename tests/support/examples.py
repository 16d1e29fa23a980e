"""How many examples properties have: their full number, or a multiple of it.

``make test`` runs the full number, ``make properties`` ten times as many. Hypothesis draws other
examples in each run.
"""

from __future__ import annotations

import os

_FACTOR = float(os.environ.get("PGSLUICE_TEST_EXAMPLES", "1"))


def examples(full: int = 100) -> int:
    """``max_examples`` of a property whose full number is this one."""
    return max(1, round(full * _FACTOR))
