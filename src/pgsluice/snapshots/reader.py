"""Reads one table under an imported snapshot, with the same types as the stream.

The server sends the rows by COPY in binary form, each column in its type's binary form or as text,
whichever is decoded faster (:attr:`pgsluice.types.ColumnType.copies_binary`, ADR 0033). The stream
uses the same type registry. So copied and streamed values cannot differ.

Rules (contracts: initial copy):

- The transaction's first statement imports the snapshot. Then the table, or the leaf partitions to
  read, are locked ACCESS SHARE, with a lock_timeout, so that they cannot be rewritten meanwhile.
  Each session does this, because the table may be rewritten between two sessions.
- A table that was rewritten between the snapshot and the lock reads as *empty* under the
  snapshot. So the relfilenode of every leaf in the snapshot is compared with the file that the
  server uses now. If they differ, :class:`TableRewritten` tells the caller to start again under
  a newer snapshot.
- A query resolves column names by the current catalog. So the columns are also compared with those
  of the snapshot: columns may swap their names between two sessions, and swap them back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from pgsluice.catalog.rights import columns_to_read, grants, table_rights
from pgsluice.catalog.tables.locks import lock_for_reading, locked_tables
from pgsluice.catalog.tables.tables import (
    has_columns_of_snapshot,
    has_name,
    is_in_snapshot,
    leaf_filenodes,
)
from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.failpoints import failpoint
from pgsluice.hints import keep_as_text
from pgsluice.replication import table_errors
from pgsluice.snapshots.copied_rows import copied_blocks
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.snapshots.read_session import ReadSession
from pgsluice.snapshots.row_block import RowBlock
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot
from pgsluice.types import ColumnType, Decoded
from pgsluice.types.buffers import Mask
from pgsluice.types.registry import printed_type

_LOCK_TIMEOUT_S = 2
"""How long a task waits for a lock, in seconds; it occupies one of Spark's cores meanwhile."""
_TEXT = "CASE pg_catalog.num_nulls({value}) WHEN 0 THEN pg_catalog.concat({value}) END"
"""The output of the type's output function. A cast to text may print something else, for inet, bool
and char(n). num_nulls counts a row of NULLs as a value, unlike IS NULL."""


class TableRewritten(TableError):
    """The table was created or rewritten (TRUNCATE, ALTER TABLE, CLUSTER ...) after the snapshot,
    or was renamed.

    It can be read under a newer snapshot, by its new name.
    """

    remedy = Remedy.RETRY


class TableLocked(TableError):
    """Another session's lock blocks reading the table for now."""

    remedy = Remedy.LATER

    @classmethod
    def by(cls, sentence: str) -> TableLocked:
        """The error for a locked table, with a sentence about the lock."""
        return cls(sentence, hint="pgsluice copies it automatically once the lock is released")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The query for a table's rows.

    Attributes:
        facts: the metadata of the table or partition root.
        columns: column names in the order of the target's columns.
        types: the type of each column, which also decides its form in the COPY.
        unlisted: column -> OIDs of the leaf partitions in whose rows it is NULL.
        row_filter: an SQL condition, as the server prints it; None: all rows.
    """

    facts: RelationFacts
    columns: tuple[str, ...]
    types: tuple[ColumnType, ...]
    row_filter: str | None = None
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The table's name for messages."""
        return f"{self.facts.namespace}.{self.facts.name}"

    def errors(self) -> AbstractContextManager[None]:
        """A context that converts errors to those of a copy of the table."""
        return table_errors(f"copying {self.table}", self.table)

    def copy_statement(self, read: Read) -> sql.Composed:
        """A COPY of a query, because COPY of a partitioned table is an error up to 18."""
        # The server's own text of the publications' conditions, not anybody's input.
        conditions = [text for text in (self.row_filter, read.condition) if text]
        return sql.SQL(
            "COPY (SELECT {columns} FROM {only}{table}{where}) TO STDOUT (FORMAT binary)"
        ).format(
            columns=sql.SQL(", ").join(map(self._expression, self.columns, self.types)),
            only=sql.SQL("" if self.reads_partitions(read) else "ONLY "),
            table=self.relation(read),
            where=sql.SQL(" WHERE " + " AND ".join(f"({text})" for text in conditions))
            if conditions
            else sql.SQL(""),
        )

    def reads_partitions(self, read: Read) -> bool:
        """Whether to read partitions: a plain table's inheritance children are separate tables."""
        return self.facts.kind == "p" and read.leaf is None

    def relation(self, read: Read) -> sql.Identifier:
        """The relation in the query of a read."""
        if read.leaf is None:
            return sql.Identifier(self.facts.namespace, self.facts.name)
        return sql.Identifier(read.leaf.namespace, read.leaf.name)

    def _expression(self, column: str, column_type: ColumnType) -> sql.Composable:
        value: sql.Composable = sql.Identifier(column)
        if leaves := self.unlisted.get(column):
            value = sql.SQL("CASE WHEN tableoid NOT IN ({}) THEN {} END").format(
                sql.SQL(", ").join(map(sql.Literal, leaves)), value
            )
        return value if column_type.copies_binary else sql.SQL(_TEXT).format(value=value)


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Some rows of a table, decoded by the type registry.

    Attributes:
        columns: the query's columns, in order.
        sent: for columns with unfit values: the values as the server sent them, by column index.
    """

    query: TableQuery
    count: int
    columns: tuple[Decoded, ...]
    sent: Mapping[int, pa.Array]

    def __len__(self) -> int:
        return self.count

    def unfit(self, column: int) -> Mask:
        """Which values of a column of ``sent`` do not fit its type."""
        mask = self.columns[column].unfit
        assert mask is not None
        return mask

    def text(self, column: int) -> pa.Array:
        """The values of a column with unfit values, as PostgreSQL prints them."""
        values = self.sent[column]
        if not self.query.types[column].copies_binary:
            return values.cast(pa.string())
        facts = self.query.facts
        (type_oid,) = (
            each.type_oid for each in facts.columns if each.name == self.query.columns[column]
        )
        return printed_type(type_oid, facts.type_definitions()).decode_binary(values).values


@dataclass(frozen=True, slots=True)
class TableReader:
    """A session that reads chunks of a table under a snapshot; see :func:`table_reader`."""

    query: TableQuery
    _connection: psycopg.Connection[tuple[object, ...]]

    def rows(self, portion: Portion) -> Iterator[ReadRows]:
        """Read a chunk of the table's rows. After an error, the session cannot read another one.

        Raises:
            SourceUnreachable: the connection broke.
        """
        with self.query.errors():
            failpoint(f"copy.reading {self.query.table}")
            for read in portion:
                statement = self.query.copy_statement(read)
                with closing(copied_blocks(self._connection, statement)) as blocks:
                    # A map keeps no block.
                    yield from map(partial(_decoded, query=self.query), blocks)


@contextmanager
def table_reader(
    dsn: str,
    snapshot: Snapshot,
    query: TableQuery,
    portions: Sequence[Portion],
    *,
    session: ReadSession | None = None,
    lock_timeout_s: int = _LOCK_TIMEOUT_S,
) -> Iterator[TableReader]:
    """A session that reads these chunks of a table, which cannot be rewritten until the block ends.

    Args:
        snapshot: a snapshot that its exporter still holds.
        session: the session, which serves other tables afterwards; None: one of its own.
        lock_timeout_s: how long to wait for locks of other sessions, in seconds.

    Raises:
        TableRewritten: the snapshot cannot see the table's rows, or the table was dropped or
            renamed.
        TableLocked: another session has locked it.
        SourceUnreachable: no connection, or it broke.
    """
    reads = tuple(read for portion in portions for read in portion)
    with (
        closing(ReadSession(dsn)) as own,
        query.errors(),
        (session or own).reading(query.table) as connection,
    ):
        import_and_lock(connection, snapshot, query, reads, lock_timeout_s)
        yield TableReader(query, connection)


def import_and_lock(
    connection: psycopg.Connection[tuple[object, ...]],
    snapshot: Snapshot,
    query: TableQuery,
    portion: Portion,
    lock_timeout_s: int,
) -> None:
    """Begin to read a chunk: import the snapshot, and lock what is read."""
    import_snapshot(connection, snapshot)
    # A server's or role's own limits must not cut a long copy short.
    connection.execute(
        f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{lock_timeout_s}s'"
    )
    # Tasks are parallel already.
    connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
    _refuse_without_rights(connection, query, portion)
    _lock(connection, query, portion)
    _refuse_rewritten(connection, query, portion)


def _lock(
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery, portion: Portion
) -> None:
    try:
        for read in {read.leaf: read for read in portion}.values():
            with_partitions = query.reads_partitions(read)
            lock_for_reading(connection, query.relation(read), with_partitions=with_partitions)
    except psycopg.errors.LockNotAvailable as error:
        connection.execute("ROLLBACK")
        locked = locked_tables(connection, [query.facts.oid])
        was_locked = f"{query.table} was locked by another session"
        sentence = locked.get(query.facts.oid, was_locked)
        raise TableLocked.by(sentence) from error
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.InsufficientPrivilege,  # on the table that has the name now
    ) as error:
        raise _renamed(query) from error


def _refuse_rewritten(
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery, portion: Portion
) -> None:
    """Refuse tables whose rows the snapshot cannot see, or sees under other names than the
    query's."""
    facts = query.facts
    leaves = {read.leaf.oid: read.leaf for read in portion if read.leaf is not None}
    if not has_name(connection, facts.oid, facts.namespace, facts.name):
        raise _renamed(query)
    if not all(
        has_name(connection, leaf.oid, leaf.namespace, leaf.name) for leaf in leaves.values()
    ):
        raise _rewritten(query, "has a partition that was dropped or renamed before it was copied")
    if not is_in_snapshot(connection, facts.oid):
        raise _rewritten(query, "was created after the snapshot was taken")
    files = leaf_filenodes(connection, leaves or [facts.oid])
    if any(file.now != file.in_snapshot for of_leaf in files.values() for file in of_leaf.values()):
        raise _rewritten(query, "was rewritten after the snapshot was taken")
    relations = {
        facts.oid if read.leaf is None else read.leaf.oid: query.relation(read) for read in portion
    }
    columns = query.columns
    if query.row_filter is not None:  # it may use any
        columns = tuple(column.name for column in facts.columns)
    if not all(
        has_columns_of_snapshot(connection, oid, relation, columns)
        for oid, relation in relations.items()
    ):
        raise _rewritten(query, "had other columns when the snapshot was taken")


def _renamed(query: TableQuery) -> TableRewritten:
    return _rewritten(query, "was dropped or renamed before it was copied")


def _rewritten(query: TableQuery, what: str) -> TableRewritten:
    return TableRewritten(
        f"{query.table} {what}",
        hint="pgsluice copies it once two catalog refreshes in a row find the same relfilenodes",
        table=query.table,
        reason=ParkReason.REWRITTEN,
    )


def _refuse_without_rights(
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery, portion: Portion
) -> None:
    """Raise an error with the missing privilege, before the server refuses the query.

    The privileges and policies of the table in the query apply, not those of its partitions.
    """
    rights = table_rights(connection, [query.facts.oid]).get(query.facts.oid)
    if rights is not None:
        # A leaf is read itself only if it may be read as a whole.
        through = [read.condition for read in portion if read.leaf is None]
        conditions, by_leaf = [query.row_filter, *through], bool(query.unlisted)
        wanted = columns_to_read(query.facts, query.columns, conditions, by_leaf=by_leaf)
        rights = rights.to_read(wanted)
    if rights is None or (rights.may_read and rights.sees_all_rows):
        return
    what = f"the role {rights.role} may not read {query.table}"
    if rights.lacking:
        what = f"the role {rights.role} may not read all that is published of {query.table}"
    if rights.may_read:
        what = (
            f"row level security of {query.table} hides rows from the role {rights.role}, so a "
            "copy would not be whole"
        )
    raise TableError(
        what,
        hint="\n".join([*grants([rights]), "pgsluice then copies the table automatically"]),
        table=query.table,
        reason=ParkReason.RIGHTS,
    )


def _decoded(block: RowBlock, query: TableQuery) -> ReadRows:
    columns: list[Decoded] = []
    sent: dict[int, pa.Array] = {}
    widths = [each.binary_width if each.copies_binary else None for each in query.types]
    values_of_columns = block.columns(widths)
    for number, (column_type, values) in enumerate(
        zip(query.types, values_of_columns, strict=True)
    ):
        if column_type.copies_binary:
            decoded = column_type.decode_spans(values)
        else:
            decoded = column_type.decode_text(values.array())
        columns.append(decoded)
        if decoded.unfit is not None and decoded.unfit.any():
            sent[number] = values.array()
    return ReadRows(query, len(block), tuple(columns), sent)


def fitting_batch(
    rows: ReadRows, schema: pa.Schema, accepted: Collection[str] = ()
) -> pa.RecordBatch:
    """The rows, after a check that every value fits its column.

    Args:
        accepted: columns whose values need not fit; such a value is NULL then.

    Raises:
        TableError: a value of another column does not fit.
    """
    query = rows.query
    for number in rows.sent:
        if query.columns[number] in accepted:
            continue
        name, column_type, mask = query.columns[number], query.types[number], rows.unfit(number)
        unfit = int(np.count_nonzero(mask))
        values, verb = ("1 value", "does") if unfit == 1 else (f"{unfit} values", "do")
        raise TableError(
            f"table {query.table}: {values} of column {name} ({column_type.name}) {verb} not fit "
            f"the target's type {column_type.arrow_type}",
            hint=keep_as_text(query.table, (query.columns[each] for each in rows.sent)),
            table=query.table,
            column=name,
        )
    return pa.RecordBatch.from_arrays([column.values for column in rows.columns], schema=schema)
