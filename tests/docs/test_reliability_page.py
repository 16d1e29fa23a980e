"""What the rows of docs/reliability.md show together."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from tests.soak.report import PAGE
from tests.soak.test_sequences import AREAS, MOST_COPIED


@pytest.mark.parametrize("area", AREAS)
def test_at_most_a_tenth_of_the_sequences_is_copied_without_a_rule(area: str) -> None:
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in PAGE.read_text().splitlines():
        row = re.match(r"\| ([^|,]+), .*; (\d+) of (\d+) copied without a rule", line)
        if row is not None:
            counts[row[1]][0] += int(row[2])
            counts[row[1]][1] += int(row[3])
    copied, plain = counts[area]
    assert plain > 50
    assert copied <= MOST_COPIED * plain
