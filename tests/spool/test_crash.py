"""The writer is killed at every place where it writes: its files stay whole, and it can go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.children import CHILDREN
from tests.support.transactions import BEGINNING, begin, commit, insert, new_spool, raw, relation
from tests.support.transactions import transaction as tx

from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages, Spool, SpoolReader, SpoolWriter

PLACES = [
    "spool.write@3", "spool.before_fsync@2", "spool.before_fsync@5", "spool.before_rename@3",
    "spool.before_rename@6", "spool.after_rename@3", "spool.after_rename@7",
    "spool.after_segment@2", "spool.after_part@1", "spool.after_part@2", "spool.after_floor@1",
    "spool.after_commits@1",
]  # fmt: skip


def write_all(spool: Spool) -> None:
    """Write segments, a transaction in parts and a frontier, and release a segment.

    Called again after a crash, it writes what is missing.
    """
    with SpoolWriter(spool) as writer:
        position = writer.position
        for end in (2000, 3000):
            if position < end:
                writer.append(raw(tx(end, [relation(5), insert(5, b"%d" % end)])))
        if position < 5000:
            head = [(0, begin(5000)), (0, relation(5)), (0, insert(5, b"5000"))]
            writer.parts.append("k", RawMessages.from_messages(head), xid=7)
            writer.parts.append("k", RawMessages.from_messages([(0, commit(5000))]), xid=7)
            writer.parts.commit("k", position=Lsn(5000), commit_timestamp=1, xid=7)
        writer.advance_frontier(Lsn(5500))
        writer.release(Lsn(2000))


def write_until_killed(path: Path, failpoints: str) -> None:
    """Runs in the child process."""
    arm(failpoints)
    write_all(Spool.open(path))


def rows(path) -> list[tuple[int, bytes]]:
    reader = SpoolReader(path)
    return [
        (int(view.block.positions[i]), view.block.message(i))
        for info in reader.segments(reader.start())
        for view in reader.views(info)
        for i in range(len(view.block))
        if view.block.tags[i] == ord("I")
    ]


@pytest.mark.parametrize("place", PLACES)
def test_after_a_kill_the_spool_is_whole_and_can_be_written(tmp_path, place):
    spool = new_spool(tmp_path / "spool")
    name, _, times = place.partition("@")
    child = CHILDREN.Process(target=write_until_killed, args=(spool.path, f"{name}=kill@{times}"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    everything = [(end, insert(5, b"%d" % end)) for end in (2000, 3000, 5000)]
    left = rows(spool.path)
    reader = SpoolReader(spool.path)
    assert left == [row for row in everything if reader.start() < row[0] <= reader.position()]
    write_all(spool)
    assert rows(spool.path) == everything[1:]
    assert SpoolReader(spool.path).frontier() == 5500
    assert not list(spool.path.rglob("segments/*/*.tmp"))
    assert len(list(spool.path.glob("parts/*/*"))) == 2
    assert SpoolReader(spool.path).start() == 2000 > BEGINNING
