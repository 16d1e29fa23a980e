"""The driver's part: folds the files of tasks into the rejects table.

Files of a table are folded after its commit and before its record, so a killed run repeats the
fold. Events after the target's position are of an attempt without a commit: the changes make them
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.rejects.events import Event, Kind
from pgsluice.rejects.files import EventFile, EventFiles
from pgsluice.rejects.fold import Reject, TableRejects
from pgsluice.rejects.table import RejectsPlace


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """A table whose target has a new position.

    Attributes:
        namespace, name: those of the target.
        copy_number: the target's.
        through: the target's position.
        copied_at: the time of a whole copy at this position, in microseconds since 1970; None: it
            has changes, or rows of partitions.
        is_counted: its rejects are counted even if there are no files.
    """

    namespace: str
    name: str
    copy_number: int
    through: Lsn
    copied_at: int | None = None
    is_counted: bool = False


@dataclass(slots=True)
class Folding:
    """Folds the rejects of one subscription; one thread at a time.

    Attributes:
        place: where they are.
        left: the tables whose files the last call left, because they were not among its tables.
        begun: the tables that it has folded, or tried to.
    """

    place: RejectsPlace
    left: frozenset[int] = frozenset()
    begun: frozenset[int] = frozenset()

    def fold(self, tables: Mapping[int, CommittedTable]) -> dict[int, int]:
        """Fold the files of tables whose targets have committed.

        Args:
            tables: by relation OID.

        Returns:
            how many rejects are open, for the tables for which this may have changed.

        Raises:
            PgsluiceError: the rejects table or the files cannot be read or written. Then nothing
                is lost: the same call does it again.
        """
        files = self.place.files
        all_names = files.names()
        names = [name for name in all_names if name.relation in tables]
        self.left = frozenset(name.relation for name in all_names if name.relation not in tables)
        with_files = {name.relation for name in names}
        wanted = {
            oid: table for oid, table in tables.items() if oid in with_files or table.is_counted
        }
        self.begun = frozenset(wanted)
        if not wanted:
            return {}
        rejects_table = self.place.table()
        stored: dict[int, list[Reject]] = {oid: [] for oid in wanted}
        for reject in rejects_table.rejects(wanted):
            stored[reject.relation].append(reject)
        folded: dict[int, TableRejects] = {}
        for oid, table in wanted.items():
            folded[oid] = TableRejects(oid, table.namespace, table.name, stored[oid])
            _fold(files, [name for name in names if name.relation == oid], table, folded[oid])
        failpoint("rejects.folding")
        rejects_table.put(reject for each in folded.values() for reject in each.changed)
        failpoint("rejects.folded")
        files.delete(names)
        return {oid: each.open_count for oid, each in folded.items()}


def _fold(
    files: EventFiles, names: list[EventFile], table: CommittedTable, rejects: TableRejects
) -> None:
    through = int(table.through)
    of_target = [name for name in names if name.copy_number == table.copy_number]
    if table.copied_at is not None:
        copied = [name for name in of_target if name.is_copy and name.after == table.through]
        begin = Event(through, 0, Kind.COPIED, time=table.copied_at)
        rejects.fold([begin, *files.read(copied)], None)
        return
    stream = [name for name in of_target if not name.is_copy]
    for after, group in groupby(stream, lambda name: name.after):
        events = [event for event in files.read(group) if event.position <= through]
        rejects.fold(events, int(after))
