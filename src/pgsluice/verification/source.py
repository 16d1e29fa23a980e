"""The source's side: PostgreSQL formats and hashes its own rows.

The text forms are those of the output functions (``concat`` calls them: a cast to text would
strip the blanks of char(n) and spell a boolean out) under the settings that the stream is
read with. If row-level security would hide rows, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from pgsluice.errors import PgsluiceError
from pgsluice.verification.digest import MOST_KEPT, Digests, Key, Mask
from pgsluice.verification.json_text import is_variant, json_as_jsonb
from pgsluice.verification.masked_text import SourceMask, masked_text
from pgsluice.verification.page_ranges import PageRanges, read_ranges
from pgsluice.verification.target import Rejected

_SETTINGS: Mapping[LiteralString, LiteralString] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "row_security": "off",
    "statement_timeout": "0",
}
_NUMERIC_OID = 1700
_JSON_OID = 114

_TABLE: LiteralString = """
SELECT c.oid, c.relkind::text,
       ARRAY(SELECT a.attname::text
             FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             WHERE k.place <= {key_columns} ORDER BY k.place)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT * FROM pg_index
    WHERE indrelid = c.oid AND (indisprimary OR (indisreplident AND c.relreplident = 'i'))
    ORDER BY indisprimary DESC LIMIT 1) i ON true
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS: LiteralString = """
SELECT a.attname::text, coalesce(e.oid, b.oid), coalesce(e.typdelim, ',')::text,
       e.oid IS NOT NULL
FROM pg_attribute a
CROSS JOIN LATERAL (
    WITH RECURSIVE domains AS (
        SELECT a.atttypid AS oid
        UNION ALL
        SELECT t.typbasetype FROM domains d JOIN pg_type t ON t.oid = d.oid WHERE t.typtype = 'd')
    SELECT t.oid, t.typelem, t.typlen FROM domains d JOIN pg_type t ON t.oid = d.oid
    WHERE t.typtype <> 'd') b
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typlen = -1
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped {stored}
ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column's name, with the properties that decide its text form.

    Attributes:
        scalar_oid: the OID of its type: of a domain the base type, of an array the elements'.
        delimiter: the character between the elements of an array of the type.
        is_array: whether its type is an array, or a domain over one.
    """

    name: str
    scalar_oid: int
    delimiter: str = ","
    is_array: bool = False

    def expression(self, arrow_type: pa.DataType | None) -> sql.Composable:
        """The column's value as SQL, converted to what the target's type can represent.

        The text of a numeric without a declared scale depends on each value's own scale, which a
        decimal(p,s) at the target does not have; a numeric that maps to a double is printed as a
        double. Blanks and the order of keys in a json are not at the target if it is a VARIANT.
        """
        name = sql.Identifier(self.name)
        if self.is_json_variant(arrow_type):
            return json_as_jsonb(name)
        if self.scalar_oid != _NUMERIC_OID or arrow_type is None:
            return name
        is_array = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
        scalar = arrow_type.value_type if is_array else arrow_type
        if pa.types.is_decimal(scalar):
            scale = sql.Literal(int(scalar.scale))
            # A value with more digits than the target holds is rounded here and is not at the
            # target: the two sides differ, as they should.
            form = "{}::numeric(1000, {})[]" if is_array else "round({}, {})"
            return sql.SQL(form).format(name, scale)
        if pa.types.is_float64(scalar):
            return sql.SQL("{}::float8[]" if is_array else "{}::float8").format(name)
        return name

    def is_json_variant(self, arrow_type: pa.DataType | None) -> bool:
        """Whether the column is of the type json, and a VARIANT at the target."""
        return self.scalar_oid == _JSON_OID and arrow_type is not None and is_variant(arrow_type)


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table, or a partitioned table's root.

    Attributes:
        columns: the replicated columns: all but generated ones.
        key: the primary key's columns, else the replica identity's index's, else none.
        is_partitioned: whether to read the rows of its partitions; for a plain table, rows of
            inheriting tables are not read.
        row_filter: an SQL condition on its rows from a trusted source (the server's catalog, or
            checked publications); None: all rows.
        unlisted: column -> OIDs of the leaf partitions in whose rows it is NULL at the target.
        masks: column -> how its text is masked at the target.
    """

    namespace: str
    name: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False
    row_filter: str | None = None
    unlisted: Mapping[str, Collection[int]] = field(default_factory=dict)
    masks: Mapping[str, SourceMask] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.namespace}.{self.name}"

    @classmethod
    def find(cls, connection: psycopg.Connection[Any], title: str) -> ComparedTable:
        """Find a table by ``schema.table``: exact names, split at the first dot.

        Raises:
            PgsluiceError: there is no such table.
        """
        namespace, dot, name = title.partition(".")
        return cls.named(connection, *((namespace, name) if dot else ("public", title)))

    @classmethod
    def named(
        cls,
        connection: psycopg.Connection[Any],
        namespace: str,
        name: str,
        *,
        with_generated: bool = False,
    ) -> ComparedTable:
        """Find a table by its two names; ``with_generated``: with its generated columns.

        Raises:
            PgsluiceError: there is no such table.
        """
        title = f"{namespace}.{name}"
        version = connection.info.server_version
        key_columns: LiteralString = "i.indnkeyatts" if version >= 110000 else "i.indnatts"
        excludes_generated = version >= 120000 and not with_generated
        stored: LiteralString = "AND a.attgenerated = ''" if excludes_generated else ""
        row = connection.execute(
            sql.SQL(_TABLE).format(key_columns=sql.SQL(key_columns)), [namespace, name]
        ).fetchone()
        if row is None:
            raise PgsluiceError(f"there is no table {title} at the source", table=title)
        oid, kind, key = row
        rows = connection.execute(
            sql.SQL(_COLUMNS).format(stored=sql.SQL(stored)), [oid]
        ).fetchall()
        columns = tuple(ComparedColumn(*facts) for facts in rows)
        return cls(namespace, name, columns, tuple(key), kind == "p")


@contextmanager
def one_snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A read-only transaction with one snapshot of the source and lossless text forms.

    If the caller has begun a transaction, that one is used: at READ COMMITTED each of its queries
    has a snapshot of its own.
    """
    is_ours = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with connection.transaction():
        if is_ours:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for name, value in _SETTINGS.items():
            connection.execute(
                sql.SQL("SET LOCAL {} = {}").format(sql.SQL(name), sql.Literal(value))
            )
        yield


def rejected_at_source(
    connection: psycopg.Connection[Any],
    table: ComparedTable,
    target_schema: pa.Schema,
    rejected: Rejected,
) -> Rejected:
    """Rejected values in the form in which the source prints them here.

    Args:
        rejected: see :class:`pgsluice.verification.target.TargetSide`.
    """
    printed = dict(rejected)
    for column in table.columns:
        by_key = rejected.get(column.name, {})
        if by_key and column.is_json_variant(_type_of(target_schema, column.name)):
            query = sql.SQL(
                "SELECT {} FROM unnest(%s::text[]) WITH ORDINALITY AS given (text, n) ORDER BY n"
            ).format(json_as_jsonb(sql.SQL("given.text::json")))
            rows = connection.execute(query, [list(by_key.values())]).fetchall()
            printed[column.name] = dict(zip(by_key, (text for (text,) in rows), strict=True))
    return printed


@dataclass(frozen=True, slots=True)
class SourceSide:
    """Digests of a table, computed by PostgreSQL; use it within :func:`one_snapshot`.

    Each page of the table is read once, by one of the sessions.

    Args:
        connections: to the source, in one snapshot.
        target_schema: the target's columns; see :meth:`ComparedColumn.expression`.
        columns: names of the columns to compare.
        key: names of the key's columns; empty: rows are identified by their content.
        ranges: its pages, and how fast they are read.
    """

    _connections: Sequence[psycopg.Connection[Any]]
    _table: ComparedTable
    _target_schema: pa.Schema
    _columns: Sequence[str]
    _key: Sequence[str]
    _ranges: PageRanges

    def buckets(self, count: int, within: Mask | None = None) -> Digests:
        """The digests of ``count`` buckets.

        Args:
            within: only rows whose buckets of ``len(within)`` are chosen there; None: all rows.
        """
        digests = Digests(count)
        query = sql.SQL("SELECT {}, {} FROM {} AS hashes GROUP BY 1")
        self._read(query, _bucket(_KEY_HASH, count), _SUMS, within, digests.add_sums)
        return digests

    def rows(self, chosen: Mask) -> dict[Key, list[str]]:
        """The hashes of the rows of those of ``len(chosen)`` buckets that are chosen, by key."""
        rows: dict[Key, list[str]] = {}

        def take(some: Iterable[tuple[Any, ...]]) -> None:
            for key, row_hash in some:
                rows.setdefault(tuple(key), []).append(row_hash)

        query = sql.SQL("SELECT {}, {} FROM {} AS hashes")
        self._read(query, sql.SQL("key"), sql.SQL("hash"), chosen, take)
        return rows

    def condition(self, chosen: Mask) -> str:
        """The SQL condition of the rows in some of ``len(chosen)`` buckets of keys."""
        return self._condition(chosen).as_string(self._connections[0])

    def _text(self, name: str) -> sql.Composable:
        """The text of a column as SQL; NULL where the target has NULL."""
        (column,) = (column for column in self._table.columns if column.name == name)
        mask = self._table.masks.get(name)
        value: sql.Composable = sql.Identifier(name)
        if mask is None:
            value = column.expression(_type_of(self._target_schema, name))
        text: sql.Composable = sql.SQL("concat({})").format(value)
        return sql.SQL("CASE WHEN num_nulls({}) = 0 {} THEN {} END").format(
            sql.Identifier(name),
            _outside(self._table.unlisted.get(name, ())),
            text if mask is None else masked_text(text, mask),
        )

    def _condition(self, chosen: Mask) -> sql.Composable:
        return _is_in(_md5_of([self._text(name) for name in self._key]), chosen)

    def _read(
        self,
        query: sql.SQL,
        first: sql.Composable,
        others: sql.Composable,
        chosen: Mask | None,
        take: Callable[[Sequence[tuple[Any, ...]]], object],
    ) -> None:
        # No parameters: with them, a % in a column's name would be taken for a placeholder.
        def of_pages(pages: sql.Composed) -> sql.Composed:
            return query.format(first, others, self._hashes(pages, chosen))

        read_ranges(self._connections, self._ranges, of_pages, take)

    def _hashes(self, pages: sql.Composed, chosen: Mask | None) -> sql.Composable:
        """The subquery (hash, key, key_hash) of the rows of some pages and buckets."""
        table, condition = self._table, pages
        if table.row_filter is not None:
            condition += sql.SQL(f" AND ({table.row_filter})")
        if chosen is None:
            return self._hashes_where(condition)
        if self._key:  # of the other rows, no column but the key's is read
            return self._hashes_where(condition + sql.SQL(" AND ") + self._condition(chosen))
        return sql.SQL("(SELECT * FROM {} AS every WHERE {})").format(
            self._hashes_where(condition), _is_in(_KEY_HASH, chosen)
        )

    def _hashes_where(self, condition: sql.Composable) -> sql.Composable:
        table, columns = self._table, self._columns
        # An alias for each column, independent of its name.
        alias = {name: sql.Identifier(f"c{number}") for number, name in enumerate(columns)}
        texts: list[sql.Composable] = [
            sql.SQL("{} AS {}").format(self._text(name), alias[name]) for name in columns
        ]
        # OFFSET 0 keeps the planner from evaluating each text's expression twice.
        rows = sql.SQL("(SELECT {} FROM {} {} WHERE {} OFFSET 0) AS texts").format(
            sql.SQL(", ").join(texts or [sql.SQL("NULL AS c0")]),
            sql.SQL("" if table.is_partitioned else "ONLY"),
            sql.Identifier(table.namespace, table.name),
            condition,
        )
        row_hash = _md5_of([alias[name] for name in columns])
        if not self._key:
            kept = [sql.SQL(f"left({{}}, {MOST_KEPT})").format(alias[name]) for name in columns]
            return sql.SQL(
                "(SELECT hash, key, hash AS key_hash"
                " FROM (SELECT {} AS hash, ARRAY[{}]::text[] AS key FROM {}) AS bare)"
            ).format(row_hash, sql.SQL(", ").join(kept), rows)
        names = [alias[name] for name in self._key]
        return sql.SQL("(SELECT {} AS hash, ARRAY[{}] AS key, {} AS key_hash FROM {})").format(
            row_hash, sql.SQL(", ").join(names), _md5_of(names), rows
        )


_SUMS = sql.SQL(
    "count(*), coalesce(sum(('x' || left(hash, 16))::bit(64)::bigint), 0),"
    " coalesce(sum(('x' || right(hash, 16))::bit(64)::bigint), 0)"
)


_KEY_HASH = sql.SQL("key_hash")


def _bucket(key_hash: sql.Composable, count: int) -> sql.Composable:
    return sql.SQL("mod(('x' || left({}, 8))::bit(32)::bigint, {})::int").format(
        key_hash, sql.Literal(count)
    )


def _is_in(key_hash: sql.Composable, chosen: Mask) -> sql.Composable:
    """The condition that a key is in one of some buckets: a bit for each of all buckets, so that
    its cost does not depend on how many are chosen."""
    bits = sql.Literal(np.packbits(chosen, bitorder="little").tobytes().hex())
    return sql.SQL("get_bit(decode({}, 'hex'), {}) = 1").format(
        bits, _bucket(key_hash, len(chosen))
    )


def _outside(leaves: Collection[int]) -> sql.Composable:
    """The condition that a row is in none of these leaves, after others."""
    if not leaves:
        return sql.SQL("")
    return sql.SQL("AND tableoid NOT IN ({})").format(
        sql.SQL(", ").join(map(sql.Literal, sorted(leaves)))
    )


def _type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    index = schema.get_field_index(name)
    return None if index < 0 else schema.field(index).type


def _md5_of(names: Sequence[sql.Composable]) -> sql.Composable:
    """The MD5 of a row's text, in hexadecimal."""
    parts = [sql.SQL("coalesce(length({0}) || ':' || {0}, '-')").format(name) for name in names]
    return sql.SQL("md5(convert_to(array_to_string(ARRAY[{}]::text[], ''), 'UTF8'))").format(
        sql.SQL(", ").join(parts)
    )
