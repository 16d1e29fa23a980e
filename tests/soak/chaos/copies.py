"""Watches the copies of a run: what was finished, and what was read although it was staged.

The journal says which ranges are staged under which snapshot, the server's log which ranges are
read, and the record which tables are finished. Needs :data:`LOGGING` of the server, and
``log_statement = 'all'`` of the role of the run.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pipeline import Pipeline

from pgsluice.errors import SpoolError
from pgsluice.spool import TableState, find_record

LOGGING = {"log_line_prefix": "%n %p "}
"""Each line begins with the time in seconds since 1970 and the process."""
_PAUSE_S = 0.05
_LINE = re.compile(r"^(\d+\.\d+) (\d+) LOG:  statement: (.*)$")
_SNAPSHOT = re.compile(r"SET TRANSACTION SNAPSHOT '([^']+)'")
_COPY = re.compile(r'^COPY \(SELECT .* FROM (?:ONLY )?"public"\."(\w+)"(.*)\) TO STDOUT')
_STAGED = (TableState.COPIED, TableState.READY)

Range = tuple[str, str, str]
"""A snapshot's name, a table or leaf, and a condition."""


@dataclass
class CopyWatch:
    """What is seen of a run's copies.

    Attributes:
        staged: range -> when it was first seen to be staged, in seconds since 1970.
        finished: table -> the number of its first finished copy.
        again: tables that were copied again after that.
    """

    one: Pipeline
    staged: dict[Range, float] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    _journals: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def until(self, ended: threading.Event) -> None:
        """Watch until the event."""
        while not ended.wait(_PAUSE_S):
            self._look_at_journals()
            self._look_at_record()

    def is_over(self, tables: Collection[str]) -> bool:
        """Whether these tables are finished."""
        return self.finished.keys() >= set(tables)

    def read_twice(self) -> list[Range]:
        """Ranges whose COPY began when they were staged under the same snapshot."""
        return [
            range_
            for began_at, range_ in copies_in_log(self.one.database.server.log_path)
            if began_at > self.staged.get(range_, began_at)
        ]

    def count_reads(self) -> int:
        """How many ranges were read, in part or whole."""
        return sum(1 for _ in copies_in_log(self.one.database.server.log_path))

    def _look_at_journals(self) -> None:
        """Each round of copies has its own."""
        names = {oid: table.name for oid, table in self._tables().items()}
        for path in (self.one.spool / "subscriptions" / "lake").glob("copies*.journal"):
            with suppress(FileNotFoundError):
                state = path.stat()
                changed = state.st_mtime_ns, state.st_size
                if names and self._journals.get(path) != changed:
                    self._journals[path] = changed
                    self._look_at_journal(path, names)

    def _look_at_journal(self, path: Path, names: Mapping[int, str]) -> None:
        now = time.time()
        portions: dict[int, list[list[dict[str, Any]]]] = {}
        snapshot = ""
        for line in _lines(path):
            if "snapshot" in line:
                snapshot = line["snapshot"][0]
            elif "portions" in line:
                portions[line["table"]] = line["portions"]
            elif line["table"] in portions and line["table"] in names:
                for read in portions[line["table"]][line["portion"]]:
                    name = read["leaf"]["name"] if read["leaf"] else names[line["table"]]
                    self.staged.setdefault((snapshot, name, read["condition"]), now)

    def _look_at_record(self) -> None:
        for table in self._tables().values():
            if table.state in _STAGED:
                first = self.finished.setdefault(table.name, table.copy_number)
                if table.copy_number != first:
                    self.again.add(table.name)

    def _tables(self) -> dict[int, Any]:
        with suppress(SpoolError, FileNotFoundError):
            record = find_record(self.one.spool, "lake")
            return {} if record is None else dict(record.tables)
        return {}


def copies_in_log(path: Path) -> Iterator[tuple[float, Range]]:
    """When each range was begun to be read."""
    snapshots: dict[str, str] = {}
    with path.open(errors="replace") as log:
        for line in log:
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                continue
            at, process, statement = found.groups()
            if snapshot := _SNAPSHOT.search(statement):
                snapshots[process] = snapshot[1]
            elif (copy := _COPY.match(statement)) and process in snapshots:
                yield float(at), (snapshots[process], copy[1], _condition(copy[2]))


def _condition(where: str) -> str:
    """As the journal has it."""
    return where.removeprefix(" WHERE (").removesuffix(")")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError):
        for line in path.read_bytes().split(b"\n"):
            with suppress(ValueError):
                yield json.loads(line)
