"""A server that plays a script of messages to capture.

The network is played back, the only place where something stands in for the real thing:
everything from the frames on is what runs in production.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.spool_changes import changes
from tests.support.transactions import new_spool

from pgsluice.capture.receiving.receiver import Receiver, ReceiverOptions
from pgsluice.capture.receiving.store import Store
from pgsluice.lsn import Lsn
from pgsluice.spool import Spool, SpoolReader, SpoolWriter
from pgsluice.wire import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Insert,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    StandbyStatusUpdate,
    StreamCommit,
    StreamStart,
    StreamStop,
    TupleData,
    decode_message,
)

Script = Sequence[bytes | Callable[[], None]]
LSN = Lsn(5000)
RELATION = Relation(
    16394, "public", "t", ReplicaIdentity.DEFAULT, (RelationColumn(1, "id", 23, -1),)
)


class Played:
    """A connection whose server says what the script has, then nothing.

    Args:
        frames: the script; a function in it is called when all before it was followed.
        ended: set after the last frame.

    Attributes:
        acknowledged: the flush LSN of each status that was sent to it.
    """

    def __init__(self, frames: Script, ended: threading.Event) -> None:
        self._frames = iter(frames)
        self._ended = ended
        self._event: Callable[[], None] | None = None
        self.pgconn = self
        self.acknowledged: list[Lsn] = []

    def get_copy_data(self, _: int) -> tuple[int, bytes]:
        if self._event is not None:
            return 0, b""
        frame = next(self._frames, None)
        if callable(frame):  # after what has come so far
            self._event = frame
            return 0, b""
        if frame is None:
            self._ended.set()
            return 0, b""
        return len(frame), frame

    def send_status(self, status: StandbyStatusUpdate) -> None:
        self.acknowledged.append(status.flush)

    def read(self) -> None:
        pass

    def wait(self, _: float) -> None:
        if self._event is not None:
            event, self._event = self._event, None
            event()


class NoFacts:
    """A catalog that knows nothing but how far the server's WAL is flushed."""

    def __init__(self, flush_lsn: Callable[[], Lsn] = lambda: Lsn(2**62 - 1)) -> None:
        self.flush_lsn = flush_lsn

    def sees(self, xid: int) -> bool:
        return True

    def on_relation(self, oid: int, like: Relation | None = None) -> None:
        return None

    def at_commit(self, oids, joining, like=None) -> dict[int, None]:
        return dict.fromkeys(oids)

    def take_changed(self) -> list[bytes]:
        return []


def frames_of(messages: list[bytes]) -> list[bytes]:
    return [b"w" + struct.pack(">QQq", 0, 0, 0) + message for message in messages]


def receive(
    path: Path, messages: list[bytes], *, parallel: bool = False, segment_bytes: int = 2048
) -> None:
    """What comes on one connection, into the spool at ``path``."""
    receive_frames(path, frames_of(messages), parallel=parallel, segment_bytes=segment_bytes)


def receive_frames(
    path: Path,
    frames: Script,
    *,
    facts: Any = None,
    parallel: bool = False,
    segment_bytes: int = 2048,
) -> list[Lsn]:
    """The same for frames and for what happens between them.

    Returns:
        what was acknowledged.
    """
    spool = Spool.open(path) if Spool.exists(path) else new_spool(path, Lsn(10))
    stop = threading.Event()
    played = Played(frames, stop)
    options = ReceiverOptions(segment_bytes, 3600, parallel=parallel)
    with SpoolWriter(spool) as writer, Store(writer, None) as store:
        Receiver(played, store, facts or NoFacts(), options, stop).run()
        store.settled_writer().forget_connection()
    return played.acknowledged


def rows(path: Path) -> dict[int, list[bytes | None]]:
    """By xid, the rows of every transaction in the spool."""
    reader = SpoolReader(path)
    found: dict[int, list[bytes | None]] = {}
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            block = view.block
            for i in (block.tags == ord("I")).nonzero()[0]:
                message = decode_message(block.message(i), in_stream=block.in_stream)
                found.setdefault(int(block.xids[i]), []).append(message.new.values[0])
    return found


def files(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in (path / "parts").glob("*/*")}


def stream(xid: int, *messages, is_first: bool = True) -> list[bytes]:
    """One block."""
    inside = [replace(one, xid=one.xid or xid) for one in messages]
    return [one.encode() for one in (StreamStart(xid, is_first), *inside, StreamStop())]


def row(value: str, xid: int | None = None) -> Insert:
    return Insert(16394, TupleData.of(value), xid)


def columns(*names: str) -> tuple[RelationColumn, ...]:
    return tuple(RelationColumn(1, name, 25, -1) for name in names)


def commit(xid: int, end: int) -> bytes:
    return StreamCommit(xid, 0, Lsn(end - 5), Lsn(end), 0).encode()


def plain(xid: int, end: int, *messages) -> list[bytes]:
    inside = (Begin(Lsn(end - 5), 0, xid), *messages, Commit(0, Lsn(end - 5), Lsn(end), 0))
    return [one.encode() for one in inside]


def decoded(path: Path) -> list[dict[str, object]]:
    return [values for _, values in changes(path)]


def prepare(xid: int, gid: str, at: int, *messages) -> list[bytes]:
    """A transaction prepared at ``at``."""
    ends = (Lsn(at), Lsn(at + 5), 0, xid, gid)
    return [one.encode() for one in (BeginPrepare(*ends), *messages, Prepare(0, *ends))]


def commit_prepared(xid: int, gid: str, end: int) -> bytes:
    return CommitPrepared(0, Lsn(end - 5), Lsn(end), 0, xid, gid).encode()


def rollback_prepared(xid: int, gid: str, end: int) -> bytes:
    return RollbackPrepared(0, Lsn(1), Lsn(end), 0, 0, xid, gid).encode()
