"""Reads one table under an imported snapshot, with the types that the stream has.

The server sends the rows by COPY in binary form, each column in the form of its type that is
decoded faster, or as text (:attr:`pgsluice.types.ColumnType.copies_binary`, ADR 0033). The type
registry that also decodes the stream decodes these. So a copied value and a streamed value cannot
differ.

Rules (contracts: initial copy):

- The snapshot is imported by the transaction's first statement. Then what is read, the table or
  leaves of it, is locked ACCESS SHARE, with a lock_timeout, so that nothing rewrites it meanwhile.
  Each session that reads a table does so: between two of them the table may be rewritten.
- A table that was rewritten between the snapshot and the lock reads as *empty* under the
  snapshot. So the relfilenode of every leaf in the snapshot is compared with the file that the
  server uses now. If they differ, :class:`TableRewritten` tells the caller to start again under
  a newer snapshot.
- A query takes a name for the column that has it now. So the columns are compared with those of the
  snapshot, too: between two sessions, columns may have swapped their names, and may swap them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from pgsluice.catalog import (
    has_columns_of_snapshot,
    has_name,
    is_in_snapshot,
    leaf_filenodes,
    lock_for_reading,
    locked_tables,
)
from pgsluice.catalog.rights import columns_to_read, grants, table_rights
from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.failpoints import failpoint
from pgsluice.hints import keep_as_text
from pgsluice.replication import connect_sql, table_errors
from pgsluice.snapshots.copied_rows import copied_blocks
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.snapshots.row_block import RowBlock
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot
from pgsluice.types import ColumnType, Decoded
from pgsluice.types.buffers import Mask
from pgsluice.types.registry import printed_type

LOCK_TIMEOUT_S = 2
"""How long a task waits for a lock: it has a core of Spark's meanwhile."""
_TEXT = "CASE pg_catalog.num_nulls({value}) WHEN 0 THEN pg_catalog.concat({value}) END"
"""What the type's output function prints. A cast to text may print something else: of inet, bool
and char(n). num_nulls, other than IS NULL, takes a row of NULLs for a value."""

_KEEP_MEMORY = """
SELECT pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat('x', 4096), 512))
"""
"""Has the server's C library free 2 MiB at once. From then on, glibc keeps twice as much that is
freed. Else it may give the memory of each row back to the system and ask for it again: the server
took 22 instead of 6.5 us of CPU for a row of 200 columns, in every other session."""


class TableRewritten(TableError):
    """The table was made or rewritten (TRUNCATE, ALTER TABLE, CLUSTER ...) after the snapshot, or
    has not the name any more that it had.

    A newer snapshot, with the name of then, can read it.
    """

    remedy = Remedy.RETRY


class TableLocked(TableError):
    """Another session keeps us from reading the table for now."""

    remedy = Remedy.LATER

    @classmethod
    def by(cls, sentence: str) -> TableLocked:
        """The error for a table that is locked as the sentence says."""
        return cls(sentence, hint="the table is copied by itself when the lock is gone")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What to read of which table.

    Attributes:
        facts: the table, or the root of a partitioned one.
        columns: names in the order of the target's columns.
        types: how each column travels.
        unlisted: column -> OIDs of the leaves in whose rows it is NULL.
        row_filter: an SQL condition, as the server's publications print it; None for all rows.
    """

    facts: RelationFacts
    columns: tuple[str, ...]
    types: tuple[ColumnType, ...]
    row_filter: str | None = None
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The name for messages."""
        return f"{self.facts.namespace}.{self.facts.name}"

    def errors(self) -> AbstractContextManager[None]:
        """A block whose errors are those of a copy of the table."""
        return table_errors(f"copying {self.table}", self.table)

    @property
    def columns_named(self) -> tuple[str, ...]:
        """The columns that a query may name; a filter may name any."""
        if self.row_filter is None:
            return self.columns
        return tuple(column.name for column in self.facts.columns)

    @property
    def widths(self) -> tuple[int | None, ...]:
        """For each column, how many bytes each value has that is sent; None: that varies."""
        return tuple(each.binary_width if each.copies_binary else None for each in self.types)

    def copy_statement(self, read: Read) -> sql.Composed:
        """COPY of a query, since COPY of a partitioned table is an error up to 18."""
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
        """A plain table's inheritance children are tables of their own; partitions are not."""
        return self.facts.kind == "p" and read.leaf is None

    def relation(self, read: Read) -> sql.Identifier:
        """What a read names in its query."""
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
    """Some rows of a table, as the type registry decodes them.

    Attributes:
        columns: of the query, in its order.
        sent: by column index, the values of a column with unfit values, as the server sent them.
    """

    query: TableQuery
    count: int
    columns: tuple[Decoded, ...]
    sent: Mapping[int, pa.Array]

    def __len__(self) -> int:
        return self.count

    def unfit(self, column: int) -> Mask:
        """Which values of a column of ``sent`` its type cannot hold."""
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
    """A session that reads portions of a table under a snapshot; see :func:`table_reader`."""

    query: TableQuery
    _connection: psycopg.Connection[tuple[object, ...]]

    def rows(self, portion: Portion) -> Iterator[ReadRows]:
        """A portion of the table's rows. After an error, the session can read no other.

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

    def batches(self, portion: Portion, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The same in batches of the target's schema.

        Args:
            schema: the target's schema, its fields in the order of ``query.columns``.

        Raises:
            SourceUnreachable: as :meth:`rows`.
            TableError: the table has a value that its column cannot hold.
        """
        return map(partial(_fitting, schema=schema), self.rows(portion))


@contextmanager
def table_reader(
    dsn: str,
    snapshot: Snapshot,
    query: TableQuery,
    portions: Sequence[Portion],
    *,
    lock_timeout_s: int = LOCK_TIMEOUT_S,
) -> Iterator[TableReader]:
    """A session that reads these portions of a table, which stays as it is until then.

    Args:
        snapshot: that its exporter still holds.
        portions: of :func:`pgsluice.snapshots.ranges.divide_table`.
        lock_timeout_s: how long the table may be locked by another session.

    Raises:
        TableRewritten: the snapshot cannot see the table's rows, or the table was dropped or
            renamed.
        TableLocked: another session has locked it.
        SourceUnreachable: no connection, or it broke.
    """
    reads = tuple(read for portion in portions for read in portion)
    with query.errors(), connect_sql(dsn, application=f"copy {query.table}") as connection:
        _import_snapshot(connection, snapshot, query, reads, lock_timeout_s)
        yield TableReader(query, connection)


def _import_snapshot(
    connection: psycopg.Connection[tuple[object, ...]],
    snapshot: Snapshot,
    query: TableQuery,
    portion: Portion,
    lock_timeout_s: int,
) -> None:
    import_snapshot(connection, snapshot)
    # A server's or role's own limits must not cut a long copy short.
    connection.execute(
        f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{lock_timeout_s}s'"
    )
    # Tasks are parallel already.
    connection.execute(f"SET LOCAL max_parallel_workers_per_gather = 0; {_KEEP_MEMORY}")
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
    """Refuse what the snapshot does not see as the names in the portion's queries say it now."""
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
    if not all(
        has_columns_of_snapshot(connection, oid, relation, query.columns_named)
        for oid, relation in relations.items()
    ):
        raise _rewritten(query, "had other columns when the snapshot was taken")


def _renamed(query: TableQuery) -> TableRewritten:
    return _rewritten(query, "was dropped or renamed before it was copied")


def _rewritten(query: TableQuery, what: str) -> TableRewritten:
    return TableRewritten(
        f"{query.table} {what}",
        hint="the table is copied by itself when two looks at the catalog find the same files",
        table=query.table,
        reason=ParkReason.REWRITTEN,
    )


def _refuse_without_rights(
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery, portion: Portion
) -> None:
    """Say before the server's refusal which right is missing.

    The rights and policies of the table that is named in a query are the ones that act, those of
    partitions are not.
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
        hint="\n".join([*grants([rights]), "the table is then copied by itself"]),
        table=query.table,
        reason=ParkReason.RIGHTS,
    )


def _decoded(block: RowBlock, query: TableQuery) -> ReadRows:
    columns: list[Decoded] = []
    sent: dict[int, pa.Array] = {}
    values_of_columns = block.columns(query.widths)
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


def _fitting(rows: ReadRows, schema: pa.Schema) -> pa.RecordBatch:
    """The rows, if every value fits its column.

    Raises:
        TableError: one does not.
    """
    query = rows.query
    for number in rows.sent:
        name, column_type, mask = query.columns[number], query.types[number], rows.unfit(number)
        unfit = int(np.count_nonzero(mask))
        raise TableError(
            f"{query.table}: {unfit} {'value' if unfit == 1 else 'values'} of column {name} "
            f"({column_type.name}) {'does' if unfit == 1 else 'do'} not fit "
            f"{column_type.arrow_type}",
            hint=keep_as_text(query.table, (query.columns[each] for each in rows.sent)),
            table=query.table,
            column=name,
        )
    return pa.RecordBatch.from_arrays([column.values for column in rows.columns], schema=schema)
