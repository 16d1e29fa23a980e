"""How many segments a batch takes: whole ones, until a limit is reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spools import START, SpoolMaker, orders

from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader
from pgsluice.spool.segments.batch_limits import BatchLimits


@pytest.fixture(scope="module")
def infos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SegmentInfo]]:
    """Three segments with one, two and three rows."""
    path: Path = tmp_path_factory.mktemp("limits") / "spool"
    maker = SpoolMaker(path)
    for rows in (1, 2, 3):
        maker.segment(orders(*range(rows)))
    yield SpoolReader(path).all_segments()
    maker.close()


@pytest.mark.parametrize(
    ("limits", "taken", "has_next", "left"),
    [
        (BatchLimits(), 3, False, float("inf")),
        (BatchLimits(rows=6), 3, False, 0),
        (BatchLimits(rows=3), 2, False, 0),
        (BatchLimits(rows=2), 1, True, 1),
        (BatchLimits(rows=5), 2, True, 2),
        (BatchLimits(segments=2), 2, False, float("inf")),
        (BatchLimits(size_bytes=1), 1, False, float("inf")),
    ],
)
def test_a_batch_takes_whole_segments_up_to_a_limit(
    infos: list[SegmentInfo], limits: BatchLimits, taken: int, has_next: bool, left: float
) -> None:
    """A segment that alone exceeds the rest is the next one: its reader may take a part of it."""
    following = infos[taken] if has_next else None
    assert limits.take(Lsn(START), infos) == (infos[taken - 1].end, following, left)


def test_a_first_segment_that_is_too_large_is_the_next_one(infos: list[SegmentInfo]) -> None:
    start = infos[1].end
    assert BatchLimits(rows=2).take(start, infos[2:]) == (start, infos[2], 2)
