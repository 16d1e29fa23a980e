"""Files of events, which tasks write before their commit and the driver folds after it.

A name has the table, its copy number and the position where the events begin. Every file is of one
attempt; those of attempts that failed have the same events as those that follow, or older ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from pgsluice.disk import naming
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.rejects.events import Event, Keys, Kind
from pgsluice.stores.contract import Folder

_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("ordinal", pa.int64()),
        ("kind", pa.int8()),
        ("key", pa.large_string()),
        ("column", pa.string()),
        ("text", pa.large_string()),
        ("time", pa.int64()),
    ]
)
_SUFFIX = ".rejects"
_COPY, _STREAM = "copy", "stream"


class EventFile(NamedTuple):
    """The name of a file.

    Attributes:
        relation: OID of the table.
        copy_number: the copy number of the target to which the events belong.
        after: the position where they begin; of a whole copy, its snapshot's.
        is_copy: they are of a whole copy.
        attempt: tells it from all others.
    """

    relation: int
    copy_number: int
    after: Lsn
    is_copy: bool
    attempt: str

    def __str__(self) -> str:
        kind = _COPY if self.is_copy else _STREAM
        after = f"{int(self.after):016X}"
        return f"{self.relation}-{self.copy_number}-{kind}-{after}-{self.attempt}{_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> EventFile | None:
        """Parse the name of a file of events; None: it is none."""
        parts = name.removesuffix(_SUFFIX).split("-")
        if not name.endswith(_SUFFIX) or len(parts) != 5 or parts[2] not in (_COPY, _STREAM):
            return None
        return cls(
            int(parts[0]), int(parts[1]), Lsn(int(parts[3], 16)), parts[2] == _COPY, parts[4]
        )


@dataclass(frozen=True, slots=True)
class EventFiles:
    """The files of one subscription, in a folder where nobody else writes; picklable."""

    folder: Folder

    def write(
        self,
        relation: int,
        copy_number: int,
        after: Lsn,
        events: Sequence[Event],
        *,
        is_copy: bool = False,
    ) -> None:
        """Write events; they are durable when this returns. Without events, no file is written."""
        if not events:
            return
        name = str(EventFile(relation, copy_number, after, is_copy, uuid.uuid4().hex))
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*events, strict=True), _SCHEMA, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=_SCHEMA)
        data = pa.BufferOutputStream()
        with pa.ipc.new_stream(data, _SCHEMA) as writer:
            writer.write_table(table)
        failpoint("rejects.writing")
        with naming(self.folder.path or self.folder.uri):
            self.folder.create(name, data.getvalue().to_pybytes())
        failpoint("rejects.written")

    def names(self) -> list[EventFile]:
        """The names of all files of events, in the order in which they are folded."""
        found = (EventFile.parse(stored.name) for stored in self.folder.entries())
        return sorted(name for name in found if name is not None)

    def read(self, names: Iterable[EventFile]) -> list[Event]:
        """The events of some files, each once, in order."""
        events: set[Event] = set()
        for name in names:
            table = pa.ipc.open_stream(self.folder.read(str(name))).read_all()
            columns = (column.to_pylist() for column in table.columns)
            events.update(map(Event._make, zip(*columns, strict=True)))
        return sorted(events)

    def keys(self, relation: int) -> Keys:
        """What may become a reject of one table by its files. Files that are deleted meanwhile do
        not count: their events are in the rejects table."""
        keys = set[tuple[str, str]]()
        for name in self.names():
            if name.relation == relation:
                with suppress(FileNotFoundError):
                    for event in self.read([name]):
                        if event.kind in (Kind.REJECTED, Kind.MOVED):
                            keys.add((event.key, event.column))
        return keys

    def delete(self, names: Sequence[EventFile]) -> None:
        """Delete files one after the other: the files after one are those of later events."""
        for name in names:
            self.folder.delete(str(name))
