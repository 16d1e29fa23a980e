"""The rejects table of a subscription: a Delta table, written like any target.

Rows are put by their key, so that a row that is written again is no second one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.net import put_rows
from pgsluice.errors import ForeignTarget
from pgsluice.lsn import Lsn
from pgsluice.rejects.events import Keys, RejectedValues
from pgsluice.rejects.files import EventFiles
from pgsluice.rejects.fold import Reject
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Sink

NAMESPACE: Final = "pg_rejects"
"""No schema at the source has this name: PostgreSQL reserves those that begin with pg_."""
_TIME = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("relation", pa.int64(), nullable=False),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("rejected_at", _TIME),
        pa.field("resolved_position", pa.int64()),
        pa.field("resolved_at", _TIME),
    ]
)
_KEY: Final = ("relation", "column_name", "key", "position", "ordinal")


@dataclass(frozen=True, slots=True)
class RejectsPlace:
    """Where a subscription's rejects are; picklable.

    Attributes:
        sink: options of a Delta sink, as :func:`pgsluice.sinks.make_sink` takes them.
        path: the rejects table's folder or URL; None: where the sink would have the table
            ``pg_rejects.<subscription>``.
        subscription: its name.
        spool_id: the spool whose positions the rejects have.
        files: the events of tasks.
        accepts: values that do not fit are rejected; otherwise they are errors.
    """

    sink: Mapping[str, Any]
    path: str | None
    subscription: str
    spool_id: str
    files: EventFiles
    accepts: bool

    def table(self) -> RejectsTable:
        """The subscription's rejects table, which is opened for each call and need not exist
        yet."""
        made: Any = make_sink({**self.sink, "foreign_writes": "allow", "rename": {}})
        if self.path is not None:
            made = replace(made, path=self.path)
        name = self.subscription
        if "{schema}" not in made.path:
            name = f"{NAMESPACE}_{name}"
        return RejectsTable(made, name, self.spool_id)

    def open_keys(self, relation: int) -> Keys:
        """The open rejects of one table, and those that it may get from events that are not folded
        yet; more of them do no harm."""
        waiting = self.files.keys(relation)  # first: a fold deletes a file after the table has it
        return {*waiting, *self.table().open_keys(relation)}


def rejected_values(
    place: RejectsPlace | None, relation: int, open_count: int, *, is_ahead: bool
) -> RejectedValues:
    """Takes the values that do not fit out of one table's changes.

    Args:
        open_count: how many rejects of the table are open; 0: the rejects table is not read.
        is_ahead: the target has changes that are not recorded, as after a kill: their rejects may
            not be folded, and are not counted.
    """
    if place is None:
        return RejectedValues((), accepts=False)
    keys: Keys = ()
    if is_ahead:
        keys = place.open_keys(relation)
    elif open_count:
        keys = place.table().open_keys(relation)
    return RejectedValues(keys, accepts=place.accepts)


@dataclass(frozen=True, slots=True)
class RejectsTable:
    """The rejects table; opened for each call.

    Attributes:
        sink: opens it.
        name: its name in the sink, in the schema :data:`NAMESPACE`.
        spool_id: rejects of other spools are replaced.
    """

    sink: Sink
    name: str
    spool_id: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in the columns of :data:`SCHEMA`; none if there is no table of this spool."""
        identity = self._identity
        handle = self.sink.open(self._table, identity)
        if handle.version < 0:
            return
        content = handle.content(handle.version)
        if content is None or content.marker is None or content.marker.owner != identity.owner:
            return
        for batch in content.rows:
            yield batch.select(SCHEMA.names).cast(SCHEMA)

    def rejects(self, relations: Collection[int]) -> list[Reject]:
        """The rejects of some source tables, by their OIDs, open or resolved."""
        wanted = pa.array(list(relations), pa.int64())
        found: list[Reject] = []
        for batch in self.batches():
            found += _rejects(batch.filter(pc.is_in(batch.column("relation"), value_set=wanted)))
        return found

    def open_at(self, relation: int, position: Lsn) -> list[Reject]:
        """The rejects of one table that are open at a position, which has been folded."""
        return [each for each in self.rejects([relation]) if each.is_open_at(int(position))]

    def open_keys(self, relation: int) -> Keys:
        """The open rejects of one source table, by its OID: pairs of key and column."""
        keys = set[tuple[str, str]]()
        for batch in self.batches():
            is_open = pc.is_null(batch.column("resolved_position"))
            chosen = batch.filter(pc.and_(is_open, pc.equal(batch.column("relation"), relation)))
            columns = (chosen.column(name).to_pylist() for name in ("key", "column_name"))
            keys.update(zip(*columns, strict=True))
        return keys

    def put(self, rejects: Iterable[Reject]) -> None:
        """Write rejects, in place of those with the same identity, in one commit.

        Raises:
            PgsluiceError: the table cannot be written.
        """
        rows = list(rejects)
        if not rows:
            return
        columns = [
            pa.array(values, pa.int64() if field.type == _TIME else field.type).cast(field.type)
            for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        writer = TableWriter(self.sink, self._table, self._identity)
        try:
            reached = writer.position()
        except ForeignTarget:
            there = writer.schema()
            if there is None or there.names != SCHEMA.names:
                raise  # another table, which stays
            writer.load([], Lsn(1))
            reached = writer.position()
        # Its positions only count its commits: rows are put, so none is put twice.
        writer.apply(put_rows(batch, _KEY), Lsn((reached or 0) + 1))
        writer.maintain(())

    def delete_leftovers(self, written_before: float) -> None:
        """See :meth:`pgsluice.sinks.fence.TableWriter.delete_leftovers`."""
        TableWriter(self.sink, self._table, self._identity).delete_leftovers(written_before)

    @property
    def _identity(self) -> TargetIdentity:
        return TargetIdentity(self.spool_id, 0, 1)

    @property
    def _table(self) -> TargetTable:
        return TargetTable(NAMESPACE, self.name, SCHEMA, _KEY, may_replace_foreign_target=True)


def _rejects(batch: pa.RecordBatch) -> Sequence[Reject]:
    columns = [
        column.cast(pa.int64()).to_pylist() if column.type == _TIME else column.to_pylist()
        for column in batch.columns
    ]
    return list(map(Reject._make, zip(*columns, strict=True)))
