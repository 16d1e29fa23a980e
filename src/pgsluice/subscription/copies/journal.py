"""The journal of copies under a held snapshot, with which a later run can resume them.

It has lines of JSON: the chunks of each table, and each staged chunk. Each line is durable before
the table is committed. A chunk whose line is missing or incomplete after a crash is read again. If
a table's copy would now read or write something else, it restarts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgsluice.copy import CopyTables, CopyWork
from pgsluice.definitions.leaf_size import LeafSize
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.spool.storage import spool_error
from pgsluice.subscription.copies.portion_queue import TableCopy

if TYPE_CHECKING:
    from pgsluice.snapshots import Snapshot


class CopyJournal:
    """The journal of the copies under one snapshot.

    Args:
        snapshot: the snapshot of the copies; a journal of another snapshot is ignored.
    """

    def __init__(self, path: Path, snapshot: Snapshot) -> None:
        self._path = path
        self._snapshot = [snapshot.name, int(snapshot.position)]
        self._plans: dict[int, tuple[str, tuple[Portion, ...]]] = {}
        self._staged: dict[int, dict[int, StagedRows]] = {}

    def read(self) -> None:
        """Read what an earlier run has staged under this snapshot."""
        lines = self._lines()
        if next(lines, None) != {"snapshot": self._snapshot}:
            return
        plans, staged = self._plans, self._staged
        for line in lines:
            oid = int(line["table"])
            if "portions" in line:
                plans[oid] = str(line["copy"]), tuple(map(_portion, line["portions"]))
                staged[oid] = {}
            elif oid in staged:
                staged[oid][int(line["portion"])] = _staged(line)

    @property
    def tables(self) -> frozenset[int]:
        """The tables whose copies have started."""
        return frozenset(self._plans)

    def begin(self) -> None:
        """Start an empty journal."""
        self._path.unlink(missing_ok=True)
        self._write({"snapshot": self._snapshot})

    def plan(self, task: CopyTables, copy: TableCopy) -> None:
        """Record the chunks of a table's copy."""
        portions = [[asdict(read) for read in portion] for portion in copy.portions]
        identity = _identity(task, copy.work)
        self._write({"table": copy.work.facts.oid, "copy": identity, "portions": portions})

    def restore(self, task: CopyTables, work: CopyWork) -> TableCopy | None:
        """A table's copy with its staged chunks; None: the journal has none, or a different one."""
        oid = work.facts.oid
        identity, portions = self._plans.get(oid, ("", ()))
        if identity != _identity(task, work):
            return None
        return TableCopy(work, portions, self._staged[oid])

    def staged(self, copy: TableCopy, number: int) -> None:
        """Record that a chunk is staged, if the sink can stage."""
        part = copy.staged[number]
        if part.loaded is not None:
            return
        payload = base64.b64encode(part.payload).decode()
        self._write(
            {
                "table": copy.work.facts.oid,
                "portion": number,
                "rows": part.rows,
                "bytes": part.bytes_written,
                "payload": payload,
            }
        )

    def _lines(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().split(b"\n"):
                with suppress(ValueError):  # it was cut off
                    yield json.loads(line)

    def _write(self, line: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, b"\n" + json.dumps(line).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise spool_error(error, self._path) from error


def _identity(task: CopyTables, work: CopyWork) -> str:
    """What identifies a copy: what it reads, and where it writes."""
    text = repr((work, task.spool_id, task.sink, task.options))
    return hashlib.sha256(text.encode()).hexdigest()


def _portion(reads: list[dict[str, Any]]) -> Portion:
    return tuple(
        Read(**{**read, "leaf": None if read["leaf"] is None else LeafSize(**read["leaf"])})
        for read in reads
    )


def _staged(line: dict[str, Any]) -> StagedRows:
    payload = base64.b64decode(line["payload"])
    return StagedRows(int(line["rows"]), int(line["bytes"]), payload)
