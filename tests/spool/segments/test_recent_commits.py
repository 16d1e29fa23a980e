"""The last commits of a spool: whole, in order, and kept when segments are deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.transactions import begin, commit, insert, new_spool, raw, relation, transaction

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages, Spool, SpoolWriter
from pgsluice.spool.segments.recent_commits import REMEMBERED, RecentCommit, Remembered, Request

REQUEST = Request(("pgsluice",), messages=False, origin="any")
SINCE_1970_US = 946_684_800_000_000


def one(end: int, xid: int = 7, *, is_empty: bool = False) -> RecentCommit:
    return RecentCommit(Lsn(end), xid, SINCE_1970_US + end, is_empty)


def remembered(spool: Spool) -> Remembered | None:
    with SpoolWriter(Spool.open(spool.path)) as writer:
        return writer.remembered()


def append(writer: SpoolWriter, *ends: int) -> None:
    writer.append(raw(*(transaction(end, [relation(5), insert(5)]) for end in ends)))


@pytest.fixture
def spool(tmp_path) -> Spool:
    return new_spool(tmp_path / "spool")


def test_the_writer_and_a_later_one_know_the_same(spool):
    with SpoolWriter(spool) as writer:
        assert writer.remembered() is None
        append(writer, 2000, 3000)
        begun = RawMessages.from_messages([(0, begin(4000)), (0, insert(5)), (0, commit(4000))])
        writer.parts.append("large", begun, xid=9)
        timestamp = SINCE_1970_US + 4000
        writer.parts.commit("large", position=Lsn(4000), commit_timestamp=timestamp, xid=9)
        writer.append(raw(transaction(5000, []), transaction(6000, [insert(5)])))
        known = writer.remembered()
    commits = one(2000), one(3000), one(4000, 9), one(5000, is_empty=True), one(6000)
    assert known == Remembered(REQUEST, Lsn(1000), commits)
    assert remembered(spool) == known


def test_deleted_segments_are_remembered(spool):
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        append(writer, 3000, 4000)
        assert writer.release(Lsn(2000)) == 1
        append(writer, 5000)
        known = writer.remembered()
    assert known == Remembered(REQUEST, Lsn(1000), (one(2000), one(3000), one(4000), one(5000)))
    assert remembered(spool) == known
    with SpoolWriter(spool) as writer:
        assert writer.release(Lsn(5000)) == 2
    assert remembered(spool) == known


def test_no_more_are_remembered_than_a_server_may_send_again(spool):
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        append(writer, *range(3000, 3000 + 10 * REMEMBERED, 10))
        append(writer, 90_000)
        known = writer.remembered()
    assert known is not None
    assert (known.since, len(known.commits)) == (Lsn(3000), REMEMBERED)
    assert (known.commits[0], known.commits[-1]) == (one(3010), one(90_000))
    assert remembered(spool) == known


def test_a_file_that_an_older_version_left_behind_is_not_continued(spool):
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        writer.release(Lsn(2000))
        left = (spool.path / "commits.json").read_bytes()
        append(writer, 3000)
        append(writer, 4000)
        writer.release(Lsn(3000))
    (spool.path / "commits.json").write_bytes(left)
    assert remembered(spool) == Remembered(REQUEST, Lsn(3000), (one(4000),))
    (spool.path / "commits.json").unlink()
    assert remembered(spool) == Remembered(REQUEST, Lsn(3000), (one(4000),))


def test_what_was_sent_to_another_request_is_forgotten(spool):
    """A server before 18 cannot decode what is older than a publication with it."""
    more = Request(("later", "pgsluice"), messages=False, origin="any")
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        writer.begin(REQUEST)
        assert not (spool.path / "commits.json").exists()
        writer.advance_frontier(Lsn(2500))
        spool.replace_identity(replace(spool.identity, publications=("pgsluice", "later")))
        writer.begin(more)
        assert writer.remembered() == Remembered(more, Lsn(2500), ())
    assert remembered(spool) == Remembered(more, Lsn(2500), ())
    with SpoolWriter(Spool.open(spool.path)) as writer:
        append(writer, 3000)
        assert writer.remembered() == Remembered(more, Lsn(2500), (one(3000),))
    assert remembered(spool) == Remembered(more, Lsn(2500), (one(3000),))


def test_another_history_past_a_position_is_remembered_from_there(spool):
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        writer.advance_frontier(Lsn(9000))
        writer.begin(Request((), messages=True, origin="any"))
        writer.lower_frontier(Lsn(2100))
        writer.begin(REQUEST)
        append(writer, 3000)
        writer.release(Lsn(3000))
    assert remembered(spool) == Remembered(REQUEST, Lsn(2100), (one(3000),))


def test_a_damaged_file_is_refused_by_name(spool):
    with SpoolWriter(spool) as writer:
        append(writer, 2000)
        writer.release(Lsn(2000))
    path = spool.path / "commits.json"
    path.write_bytes(path.read_bytes().replace(b"2000", b"2001").replace(b"7D0", b"7D1"))
    with pytest.raises(SpoolError, match=r"commits\.json is damaged") as refused:
        remembered(spool)
    assert "delete it" in (refused.value.hint or "")
