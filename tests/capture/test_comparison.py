"""What a server may send again: exactly the commits that the spool remembers."""

from __future__ import annotations

import pytest

from pgsluice.capture.source.comparison import Comparison
from pgsluice.errors import ForeignSource
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.recent_commits import RecentCommit, Remembered, Request

FRONTIER = Lsn(5000)


def one(end: int, xid: int = 7, time: int = 1, *, is_empty: bool = False) -> RecentCommit:
    return RecentCommit(Lsn(end), xid, time, is_empty)


def comparison(*commits: RecentCommit, start: int = 1000, origin: str = "any") -> Comparison:
    request = Request(("p",), messages=False, origin=origin)
    return Comparison(Remembered(request, Lsn(1000), commits), Lsn(start), FRONTIER)


KNOWN = one(2000), one(3000, 8), one(4000, 9)
EMPTY = one(2500, 1, is_empty=True)

SAME = {
    "all": (KNOWN, KNOWN),
    "all, one of them without changes now": (KNOWN, [*KNOWN[:2], one(4000, 9, is_empty=True)]),
    "all, one of them with changes now": ([EMPTY, KNOWN[2]], [one(2500, 1), KNOWN[2]]),
    "one without changes more": (KNOWN, [KNOWN[0], EMPTY, *KNOWN[1:]]),
    "one without changes less": ([KNOWN[0], EMPTY, KNOWN[1]], KNOWN[:2]),
    "none": ((), ()),
}
OTHER = {
    "none of them": (KNOWN, ()),
    "fewer at the end": (KNOWN, KNOWN[:2]),
    "fewer in between": (KNOWN, [KNOWN[0], KNOWN[2]]),
    "more at the end": (KNOWN, [*KNOWN, one(4500)]),
    "more in between": (KNOWN, [KNOWN[0], one(2500), *KNOWN[1:]]),
    "more than none": ((), [one(4999)]),
    "another xid": (KNOWN, [KNOWN[0], one(3000, 9), KNOWN[2]]),
    "another time": (KNOWN, [KNOWN[0], one(3000, 8, 2), KNOWN[2]]),
    "another position": (KNOWN, [KNOWN[0], one(3001, 8), KNOWN[2]]),
}


def run(compared: Comparison, sent: list[RecentCommit], *, by_keepalive: bool) -> None:
    for each in sent:
        compared.commit(each)
        assert not compared.is_over
    if by_keepalive:
        compared.passed(FRONTIER)
    else:
        compared.commit(one(5001))


@pytest.mark.parametrize("by_keepalive", [True, False])
@pytest.mark.parametrize("name", SAME)
def test_the_same_history(name, by_keepalive):
    known, sent = SAME[name]
    compared = comparison(*known)
    run(compared, sent, by_keepalive=by_keepalive)
    assert compared.is_over
    assert compared.matched == FRONTIER


@pytest.mark.parametrize("by_keepalive", [True, False])
@pytest.mark.parametrize("name", OTHER)
def test_another_history(name, by_keepalive):
    known, sent = OTHER[name]
    with pytest.raises(ForeignSource, match="was restored from an older state") as refused:
        run(comparison(*known), sent, by_keepalive=by_keepalive)
    assert "pgsluice drop CONFIG" in (refused.value.hint or "")


def test_what_is_before_the_start_is_not_expected():
    compared = comparison(*KNOWN, start=3000)
    run(compared, [KNOWN[2]], by_keepalive=True)
    assert compared.is_over


def test_a_keepalive_before_the_end_ends_nothing():
    compared = comparison(*KNOWN)
    compared.passed(Lsn(1500))
    compared.commit(KNOWN[0])
    assert (compared.is_over, compared.matched) == (False, Lsn(2000))
    with pytest.raises(ForeignSource, match="0/BB8 "):
        compared.passed(Lsn(3999))


def test_a_prepared_transaction_of_another_origin_is_unknown():
    compared = comparison(*KNOWN, origin="none")
    compared.commit(one(1500), was_prepared=True)
    with pytest.raises(ForeignSource):
        comparison(*KNOWN).commit(one(1500), was_prepared=True)
