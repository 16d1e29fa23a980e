"""The sequences that ``make test`` leaves out, because they are known to end wrong at times."""

from __future__ import annotations

import re

from tests.support.sequences.sequence import Drawn

_WRONG = re.compile(r'ADD "')
"""A target that has a column of a name cannot get one that differs by its case only."""


def is_known(drawn: Drawn) -> bool:
    """Whether a sequence is left out."""
    return any(_WRONG.search(step.text) for step in drawn.steps)
