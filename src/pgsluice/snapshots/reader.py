"""Reads one table under an imported snapshot, with the types that the stream has.

The server sends the rows as CSV (COPY ... TO STDOUT). Arrow's CSV reader turns them into columns
of text, and the type registry that also decodes the stream converts these. So a copied value
and a streamed value cannot differ.

Rules (contracts: initial copy):

- The snapshot is imported by the transaction's first statement. Then what is read, the table or
  leaves of it, is locked ACCESS SHARE, with a lock_timeout, so that nothing rewrites it meanwhile.
  Each reader of a part of a table does so: between two of them the table may be rewritten.
- A table that was rewritten between the snapshot and the lock reads as *empty* under the
  snapshot. So the relfilenode of every leaf in the snapshot is compared with the file that the
  server uses now. If they differ, :class:`TableRewritten` tells the caller to start again under
  a newer snapshot.
- A query takes a name for the column that has it now. So the columns are compared with those of the
  snapshot, too: between two readers, columns may have swapped their names, and may swap them back.
"""

from __future__ import annotations

import io
import re
import select
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import pq, sql

from pgsluice.catalog import (
    has_columns_of_snapshot,
    has_name,
    is_in_snapshot,
    leaf_filenodes,
    locked_tables,
)
from pgsluice.catalog.rights import grants, table_rights
from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.hints import copy_again
from pgsluice.replication import broken_sessions, connect_sql
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot
from pgsluice.types import ColumnType

LOCK_TIMEOUT_S = 2
"""How long a task waits for a lock: it has a core of Spark's meanwhile."""
_BLOCK_BYTES = 8 * 1024 * 1024
_GATHER_BYTES = 1024 * 1024
_LARGEST_BLOCK_BYTES = 2**31 - 1


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

    @property
    def columns_named(self) -> tuple[str, ...]:
        """The columns that a query may name; a filter may name any."""
        if self.row_filter is None:
            return self.columns
        return tuple(column.name for column in self.facts.columns)

    def copy_statement(self, read: Read) -> sql.Composed:
        """COPY of a query, since COPY of a partitioned table is an error up to 18."""
        # A plain table's inheritance children are tables of their own; partitions are not.
        reads_partitions = self.facts.kind == "p" and read.leaf is None
        # The server's own text of the publications' conditions, not anybody's input.
        conditions = [text for text in (self.row_filter, read.condition) if text]
        return sql.SQL(
            "COPY (SELECT {columns} FROM {only}{table}{where}) TO STDOUT (FORMAT csv)"
        ).format(
            columns=sql.SQL(", ").join(map(self._expression, self.columns)),
            only=sql.SQL("" if reads_partitions else "ONLY "),
            table=self.relation(read),
            where=sql.SQL(" WHERE " + " AND ".join(f"({text})" for text in conditions))
            if conditions
            else sql.SQL(""),
        )

    def relation(self, read: Read) -> sql.Identifier:
        """What a read names in its query."""
        if read.leaf is None:
            return sql.Identifier(self.facts.namespace, self.facts.name)
        return sql.Identifier(read.leaf.namespace, read.leaf.name)

    def _expression(self, column: str) -> sql.Composable:
        leaves = self.unlisted.get(column)
        if not leaves:
            return sql.Identifier(column)
        return sql.SQL("CASE WHEN tableoid NOT IN ({}) THEN {} END").format(
            sql.SQL(", ").join(map(sql.Literal, leaves)), sql.Identifier(column)
        )


def read_portion(
    dsn: str, snapshot: Snapshot, query: TableQuery, portion: Portion, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """A portion of the table's rows under the snapshot, in batches of the target's schema.

    Args:
        snapshot: that its exporter still holds.
        portion: of :func:`pgsluice.snapshots.ranges.divide_table`.
        schema: the target's schema, its fields in the order of ``query.columns``.

    Raises:
        TableRewritten: the snapshot cannot see the table's rows, or the table was dropped or
            renamed.
        TableLocked: another session has locked it.
        TableError: it has a value that its column cannot hold.
        SourceUnreachable: no connection, or it broke.
    """
    with (
        broken_sessions(f"copying {query.table}"),
        connect_sql(dsn, application=f"copy {query.table}") as connection,
    ):
        _import_snapshot(connection, snapshot, query, portion)
        for read in portion:
            yield from _read(connection, query, read, schema)


def _read(
    connection: psycopg.Connection[tuple[object, ...]],
    query: TableQuery,
    read: Read,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    block_bytes = _BLOCK_BYTES
    sent = 0
    while True:
        try:
            for batch in _copy(connection, query, read, schema, block_bytes, skip=sent):
                sent += len(batch)
                yield batch
            return
        except pa.ArrowInvalid as error:
            # One row is longer than Arrow's reader looks ahead. The snapshot still
            # stands, so the same COPY gives the same rows in the same order again.
            # Arrow says so in words only; its wording has changed before.
            is_too_long = re.search("block.size", str(error)) is not None
            if not is_too_long or block_bytes >= _LARGEST_BLOCK_BYTES:
                raise
            block_bytes = min(block_bytes * 8, _LARGEST_BLOCK_BYTES)


def _import_snapshot(
    connection: psycopg.Connection[tuple[object, ...]],
    snapshot: Snapshot,
    query: TableQuery,
    portion: Portion,
) -> None:
    import_snapshot(connection, snapshot)
    # A server's or role's own limits must not cut a long copy short.
    connection.execute(
        f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"
    )
    # Rows come back in one fixed order, should the same COPY have to be read again.
    connection.execute("SET LOCAL synchronize_seqscans = off")
    connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
    _refuse_without_rights(connection, query)
    _lock(connection, query, portion)
    _refuse_rewritten(connection, query, portion)


def _lock(
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery, portion: Portion
) -> None:
    named = {read.leaf: query.relation(read) for read in portion}
    try:
        for relation in named.values():
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(relation))
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
    connection: psycopg.Connection[tuple[object, ...]], query: TableQuery
) -> None:
    """Say before the server's refusal which right is missing.

    The rights and policies of the table that is named in a query are the ones that act, those of
    partitions are not.
    """
    rights = table_rights(connection, [query.facts.oid]).get(query.facts.oid)
    if rights is None or (rights.may_read and rights.sees_all_rows):
        return
    what = f"the role {rights.role} may not read {query.table}"
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


def _copy(
    connection: psycopg.Connection[tuple[object, ...]],
    query: TableQuery,
    read: Read,
    schema: pa.Schema,
    block_bytes: int,
    skip: int,
) -> Iterator[pa.RecordBatch]:
    """One COPY, without its first ``skip`` rows."""
    stream = _CopyStream(connection, query.copy_statement(read))
    try:
        with _csv_reader(stream, query.columns, block_bytes) as reader:
            for batch in reader:
                dropped = min(skip, len(batch))
                skip -= dropped
                if dropped < len(batch):
                    yield _typed(batch.slice(dropped), query, schema)
    except pa.ArrowInvalid as error:
        stream.drain()
        if "Empty CSV file" not in str(error):
            raise
    except BaseException:
        connection.close()  # in the middle of a COPY it is good for nothing else
        raise


def _csv_reader(
    stream: io.RawIOBase, columns: tuple[str, ...], block_bytes: int
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        pa.PythonFile(io.BufferedReader(stream, buffer_size=_GATHER_BYTES), mode="r"),
        read_options=pa.csv.ReadOptions(
            column_names=list(columns), block_size=block_bytes, use_threads=False
        ),
        # A one-column table's NULL is an empty line.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        # NULL is nothing at all, an empty string is "".
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.large_binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _typed(batch: pa.RecordBatch, query: TableQuery, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for name, column_type, text in zip(query.columns, query.types, batch.columns, strict=True):
        decoded = column_type.decode_text(text)
        if decoded.unfit is not None and decoded.unfit.any():
            unfit = int(decoded.unfit.sum())
            raise TableError(
                f"{query.table}: {unfit} {'value' if unfit == 1 else 'values'} of column {name} "
                f"({column_type.name}) {'does' if unfit == 1 else 'do'} not fit "
                f"{column_type.arrow_type}",
                hint="give the column another type in the subscription, "
                f'types = {{ "{query.table}.{name}" = "string" }}, then copy the table: '
                f"{copy_again(query.table)}",
                table=query.table,
                column=name,
            )
        columns.append(decoded.values)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _CopyStream(io.RawIOBase):
    """The data of a COPY as a readable file, for Arrow's CSV reader.

    COPY sends one message for each row. So libpq is asked directly, and Arrow gets many rows at
    a time: psycopg's own read and a slice for each row would cost more than all the rest.

    Args:
        connection: idle; it runs nothing else until :meth:`drain`.

    Raises:
        psycopg.Error: as the server says it; also while reading.
    """

    def __init__(
        self, connection: psycopg.Connection[tuple[object, ...]], statement: sql.Composed
    ) -> None:
        self._pgconn = connection.pgconn
        self._rest = memoryview(b"")
        self._is_ended = False
        result = self._pgconn.exec_(statement.as_bytes(connection))
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(self._gather())
        count = min(len(self._rest), len(buffer))
        memoryview(buffer)[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def drain(self) -> None:
        """Read and discard the rest: a cancel would end the transaction."""
        while not self._is_ended:
            self._gather()

    def _gather(self) -> bytearray:
        """The next rows; empty at the end."""
        rows = bytearray()
        get = self._pgconn.get_copy_data
        while len(rows) < _GATHER_BYTES and not self._is_ended:
            size, row = get(1)
            if size > 0:
                rows += row
            elif size == 0:
                self._poll.poll()
                self._pgconn.consume_input()
            else:
                self._end()
        return rows

    def _end(self) -> None:
        self._is_ended = True
        failures = []
        while (result := self._pgconn.get_result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                failures.append(result)
        if failures:
            raise psycopg.errors.error_from_result(failures[0])
