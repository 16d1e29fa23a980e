"""The sequences that ``make test`` leaves out, because they are known to end wrong at times."""

from __future__ import annotations

import re

from tests.support.sequences.sequence import Drawn

_WRONG = re.compile(r'RENAME|ADD "')
"""A column is matched by its name, and not by its number."""


def is_known(drawn: Drawn) -> bool:
    """Whether a sequence is left out."""
    return any(_WRONG.search(step.text) for step in drawn.steps)
