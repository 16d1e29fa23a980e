"""Functions for tables of users' own: the last state of each key, and values that were not sent.

They take rows of ``format("pgoutput")`` with the option ``table``, in ``foreachBatch`` or of
``spark.read``, and are DataFrames again: nothing is collected. Rules:

* Of each key, only changes after the last TRUNCATE count.
* A row's *life* begins with its insert, or with an update that gave it its key. It ends with its
  delete, or with an update that gives it another key. A value that was not sent is that of an
  earlier change of the same life.
* A life that began in these changes has nothing to do with the row of that key in a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users call it

from pgsluice.errors import ConfigError
from pgsluice.spark.source.schema import CHANGE_COLUMNS, change_columns, quote

_BUCKETS = 64
"""Keys are spread over these, and each has a copy of every TRUNCATE: the rows are read once, and
no task gets all of them."""
_KEY = "pgsluice_key"
"""The key in the metadata of the column ``_is_new``, for :func:`fill_absent`."""
_OURS = "__pgsluice_"
_IS_NEW = "is_new"


def latest_per_key(
    changes: DataFrame, key: Sequence[str] | None = None, *, change_column_prefix: str = "_"
) -> DataFrame:
    """The last change of each key, with values of earlier changes where the server sent none.

    * An ``insert`` or ``update_postimage`` is the row's last state. Columns that no change of its
      life has stay in ``_absent``; :func:`fill_absent` takes them from a target.
    * A ``delete`` has at least the key. An update that gives a row another key is the ``delete`` of
      the old key, and an ``update_postimage`` of the new one.
    * A ``truncate`` deletes all rows that the target has; the other rows of the result come after
      it. Apply it first.

    Args:
        changes: change rows of one table, not streaming.
        key: the columns that identify a row; None: those that the rows name in ``_key``, which a
            small job reads.
        change_column_prefix: the option of this name, if the rows were read with it.

    Returns:
        the same columns and ``_is_new``: the row's life began in these changes, so that a target's
        row of this key, if it has one, is another row. No two rows have the same key.

    Raises:
        ConfigError: the rows are streaming, or envelope rows, or have no key.
        pyspark.errors.PySparkException: when the result is used: the server did not send the key
            with a change.
    """
    table = _table_of(changes, change_column_prefix)
    names = table.first_key(changes) if key is None else tuple(key)
    table.refuse_unknown(names)
    kind, absent, unfit = (table.change(name) for name in ("change_type", "absent", "unfit"))
    at = F.struct(table.change("commit_version"), table.change("ordinal"))
    is_truncate = kind == "truncate"
    lacks_key = F.arrays_overlap(absent, F.array(*map(F.lit, names))) if names else F.lit(True)
    identity = F.when(
        ~is_truncate,
        F.when(lacks_key, F.raise_error(F.lit(_without_key(names)))).otherwise(
            F.struct(*map(_column, names)) if names else F.struct(F.lit(0))
        ),
    )
    change = Window.partitionBy(table.change("commit_version"), table.change("ordinal"))
    id_, place, bucket = (_ours(name) for name in ("id", "place", "bucket"))
    rows = changes.select("*", identity.alias(_OURS + "id"), at.alias(_OURS + "place"))
    rows = rows.select(
        "*",
        *(
            F.max(F.when(kind == f"update_{name}", id_)).over(change).alias(_OURS + name)
            for name in ("preimage", "postimage")
        ),
    )
    is_moved = ~_ours("preimage").eqNullSafe(_ours("postimage"))
    is_moved &= _ours("preimage").isNotNull()
    begins = (kind == "insert") | ((kind == "update_postimage") & is_moved)
    leaves = (kind == "update_preimage") & is_moved
    ends = (kind == "delete") | leaves
    rows = rows.where((kind != "update_preimage") | is_moved)

    every = F.sequence(F.lit(0), F.lit(_BUCKETS - 1))
    own = F.array(F.pmod(F.hash(id_), F.lit(_BUCKETS)))
    rows = rows.select(
        "*", F.explode(F.when(is_truncate, every).otherwise(own)).alias(_OURS + "bucket")
    )
    truncated = F.max(F.when(is_truncate, place)).over(Window.partitionBy(bucket))
    rows = rows.select("*", truncated.alias(_OURS + "truncated"))
    last_truncate = is_truncate & (place == _ours("truncated")) & (bucket == 0)
    after = ~is_truncate & (_ours("truncated").isNull() | (place > _ours("truncated")))
    rows = rows.where(last_truncate | after)

    of_key = Window.partitionBy(bucket, id_).orderBy(place)
    starts = F.when(begins | ends, 1).otherwise(0)
    rows = rows.select(
        "*",
        F.sum(starts).over(of_key).alias(_OURS + "life"),
        F.lead(F.lit(1)).over(of_key).isNull().alias(_OURS + "is_last"),
    )
    of_life = Window.partitionBy(bucket, id_, _ours("life")).orderBy(place)
    text = table.change("unfit_text")
    sent = {
        name: F.last(
            F.when(
                ~F.array_contains(absent, name),
                F.struct(
                    _column(name).alias("value"),
                    F.array_contains(unfit, name).alias("is_unfit"),
                    F.try_element_at(text, F.lit(name)).alias("text"),
                ),
            ),
            ignorenulls=True,
        ).over(of_life)
        for name in table.own
    }
    rows = rows.select(
        "*",
        F.max(begins).over(of_life).alias(_OURS + _IS_NEW),
        *(each.alias(_sent(n)) for n, each in enumerate(sent.values())),
    ).where(_ours("is_last"))
    found = {name: F.col(_sent(n)) for n, name in enumerate(table.own)}
    given = {
        "change_type": F.when(leaves, "delete").otherwise(kind),
        "absent": _names_where((name, each.isNull()) for name, each in found.items()),
        "unfit": _names_where((name, each["is_unfit"]) for name, each in found.items()),
        "unfit_text": F.map_from_entries(
            F.filter(
                F.array(
                    *(
                        F.when(each["is_unfit"], F.struct(F.lit(name), each["text"]))
                        for name, each in found.items()
                    )
                ),
                lambda entry: entry.isNotNull(),
            )
        ),
    }
    return rows.select(
        *(each["value"].alias(name) for name, each in found.items()),
        *(
            given.get(name, table.change(name)).alias(table.prefix + name)
            for name, _ in CHANGE_COLUMNS
        ),
        _ours(_IS_NEW).alias(table.prefix + _IS_NEW, metadata={_KEY: [*names]}),
    )


def fill_absent(
    changes: DataFrame,
    current: DataFrame,
    *,
    change_column_prefix: str = "_",
    missing: Literal["error", "keep"] = "error",
) -> DataFrame:
    """Fill the columns in ``_absent`` from a target's rows.

    Deletes stay as they are: they only need the key.

    Args:
        changes: the result of :func:`latest_per_key`; other columns of it may be added.
        current: the target's rows before these changes, one for each key, with the key's columns
            and the columns to fill.
        change_column_prefix: as for :func:`latest_per_key`.
        missing: a value that ``current`` does not have, because its row got its key in these
            changes or is not there: ``error``, or ``keep`` it NULL and in ``_absent``.

    Returns:
        the changes without ``_is_new``.

    Raises:
        ConfigError: ``changes`` is not a result of :func:`latest_per_key`, or ``current`` lacks a
            column of the key, or has another type.
        pyspark.errors.PySparkException: when the result is used: a value is missing.
    """
    table = _table_of(changes, change_column_prefix, _IS_NEW)
    key = changes.schema[table.prefix + _IS_NEW].metadata.get(_KEY)
    if key is None:
        raise ConfigError(
            f"the column {table.prefix}{_IS_NEW} was not made by pgsluice.latest_per_key",
            hint="pass the result of pgsluice.latest_per_key, without an alias for this column",
        )
    _refuse_other_types(changes, current, key, table.own)
    shared = [name for name in table.own if name in current.columns]
    there = current.select(
        *(_column(name).alias(f"{_OURS}k{n}") for n, name in enumerate(key)),
        F.struct(*map(_column, shared)).alias(_OURS + "current"),
    )
    matches = F.lit(bool(key))
    for n, name in enumerate(key):
        matches &= _column(name).eqNullSafe(_ours(f"k{n}"))
    rows = changes.join(there, matches, "left")
    absent, kind = table.change("absent"), table.change("change_type")
    has_row = _ours("current").isNotNull() & ~table.change(_IS_NEW)
    lacks = {
        name: F.array_contains(absent, name)
        & ((kind == "delete") | (F.lit(True) if name not in shared else ~has_row))
        for name in table.own
    }

    def value(name: str) -> Column:
        failing = F.raise_error(F.lit(_missing(name, key))) if missing == "error" else F.lit(None)
        filled = F.when(kind == "delete", _column(name)).when(lacks[name], failing)
        if name in shared:
            filled = filled.otherwise(_ours("current")[name])
        return F.when(F.array_contains(absent, name), filled).otherwise(_column(name))

    return rows.select(
        *(
            value(name).alias(name)
            if name in table.own
            else _names_where(lacks.items()).alias(name)
            if name == table.prefix + "absent"
            else _column(name)
            for name in changes.columns
            if name != table.prefix + _IS_NEW
        )
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Change rows of one table.

    Attributes:
        own: the table's own columns.
        prefix: the start of the change columns' names.
    """

    own: tuple[str, ...]
    prefix: str

    def change(self, name: str) -> Column:
        """A change column."""
        return _column(self.prefix + name)

    def first_key(self, changes: DataFrame) -> tuple[str, ...]:
        """The key that the first row with one names; empty: none has."""
        first = changes.where(F.size(self.change("key")) > 0).select(self.change("key")).first()
        return () if first is None else tuple(first[0])

    def refuse_unknown(self, key: Iterable[str]) -> None:
        """Refuse a key with a column that the rows do not have.

        Raises:
            ConfigError: there is one.
        """
        for name in key:
            if name not in self.own:
                raise ConfigError(
                    f'the rows in the argument changes have no column "{name}", which is part of '
                    "the key",
                    hint="add this column to the option columns of the query that reads them, or "
                    "give other columns in the argument key",
                    column=name,
                )


def _table_of(changes: DataFrame, prefix: str, *others: str) -> _Table:
    """The columns of change rows.

    Raises:
        ConfigError: they are streaming, envelope rows, or lack change columns.
    """
    if changes.isStreaming:
        raise ConfigError(
            "this function uses a window, which Spark does not support for streaming rows",
            hint="call the function in foreachBatch, with the DataFrame of the batch",
        )
    required = [*change_columns(prefix), *(prefix + name for name in others)]
    if missing := [name for name in required if name not in changes.columns]:
        raise ConfigError(
            f"the given rows do not have the column {', '.join(missing)}",
            hint="pass the result of pgsluice.latest_per_key"
            if others
            else 'pass the rows that format("pgoutput") returns for one table, with all columns',
        )
    if any(kind == "variant" for _, kind in changes.dtypes):
        raise ConfigError(
            "the given rows are envelope rows, which have changes of many tables",
            hint="read the rows of one table: set the option table of the query",
            option="table",
        )
    return _Table(tuple(name for name in changes.columns if name not in required), prefix)


def _refuse_other_types(
    changes: DataFrame, current: DataFrame, key: Sequence[str], own: Sequence[str]
) -> None:
    ours, theirs = dict(changes.dtypes), dict(current.dtypes)
    for name in key:
        if name not in theirs:
            raise ConfigError(
                f'the argument current has no column "{name}", which is part of the key',
                column=name,
            )
    for name in own:
        changed_type = ours[name]
        current_type = theirs.get(name, changed_type)
        if current_type != changed_type:
            raise ConfigError(
                f'column "{name}" has the type {current_type} in the argument current, but the '
                f"type {changed_type} in the argument changes",
                hint=f"cast the column of current to {changed_type}",
                column=name,
            )


def _without_key(key: Sequence[str]) -> str:
    if not key:
        return "pgsluice: the changes have no key: give the table a primary key, or pass key"
    return (
        f"pgsluice: the server did not send the key ({', '.join(key)}) with a change: it is not "
        "the replica identity"
    )


def _missing(name: str, key: Sequence[str]) -> str:
    return (
        f'pgsluice: the server did not send column "{name}" of a row that the current rows do not '
        f"have under its key ({', '.join(key)}): set REPLICA IDENTITY FULL, or missing='keep'"
    )


def _names_where(conditions: Iterable[tuple[str, Column]]) -> Column:
    """The names whose condition is true, as array<string>."""
    named = [F.when(condition, F.lit(name)) for name, condition in conditions]
    return F.filter(F.array(*named).cast("array<string>"), lambda name: name.isNotNull())


def _column(name: str) -> Column:
    return F.col(quote(name))


def _ours(name: str) -> Column:
    return _column(_OURS + name)


def _sent(number: int) -> str:
    return f"{_OURS}sent{number}"
