"""Compares a source table at two catalog refreshes: did rows change without changes in the stream?

The stream does not carry ``ALTER TABLE ... TYPE int USING a * 2`` (the type stays, every value
changes), a column that is renamed, or dropped and recreated, a table that was missing in a
publication for a while, or a partition that is attached or detached with its rows. The catalog
shows these. :data:`RULES` has the differences after which the table is copied again; the first one
that applies is the reason. :data:`SUSPICIONS` has differences that harmless statements also make:
the table is compared with its target, and copied only if it differs. All other differences are
harmless: a new file alone is VACUUM FULL, CLUSTER, or a TRUNCATE that is sent.

If the only differences are partitions that were attached or removed with rows, or were detached or
not sent for a while, and the table has a key, only their rows are replaced at the target. The rows
of a partition that is not new have to be identified by its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pgsluice.schema_rules.known import ColumnState, added_columns
from pgsluice.schema_rules.look import (
    Look,
    added_leaves,
    added_partitions,
    are_bounds_known,
    are_rows_known,
    attached_anew,
    lost_partitions,
    renewed_leaves,
    resumed_leaves,
    rows_to_replace,
)
from pgsluice.schema_rules.types import prints_all
from pgsluice.schema_rules.verdicts import (
    ColumnsAdded,
    CopyAgain,
    ReplacePartitions,
    Same,
    SourceVerdict,
    Verify,
)

FIRST_WITH_TRUNCATE = 110000


def _rewritable_leaves(look: Look) -> set[int]:
    """Leaf partitions with a new relfilenode from a possible ALTER TABLE: all except those that
    still have the same TOAST table.

    ALTER TABLE creates a new TOAST table for a rewritten table. TRUNCATE, VACUUM FULL, CLUSTER and
    SET TABLESPACE keep it, with a new file. Source: finish_heap_swap() in cluster.c, and its
    callers.
    """
    before, now = look.before.toast_tables, look.now.toast_tables
    return {
        leaf
        for leaf in renewed_leaves(look.before, look.now)
        if leaf not in before or before[leaf] != now.get(leaf)
    }


def _sent_columns(look: Look) -> Iterator[tuple[ColumnState, ColumnState]]:
    """Each sent column that existed before, then and now."""
    for number in look.before.columns.keys() & look.now.columns.keys():
        if look.now.columns[number].is_sent:
            yield look.before.columns[number], look.now.columns[number]


def _is_rewritten(look: Look) -> bool:
    return bool(_rewritable_leaves(look)) and any(
        before.type_oid and (before.type_oid, before.typmod) != (now.type_oid, now.typmod)
        for before, now in _sent_columns(look)
    )


def _may_be_rewritten(look: Look) -> bool:
    """Whether an ALTER TYPE may have rewritten the table: it writes the column's row, as many other
    statements do, and a later statement may create another file or write the row again."""
    return bool(_rewritable_leaves(look)) and any(
        before.version != now.version for before, now in _sent_columns(look)
    )


def _perhaps_truncated(look: Look) -> set[int]:
    """Leaf partitions with a new relfilenode, maybe from a TRUNCATE that is not sent."""
    renewed = renewed_leaves(look.before, look.now)
    if look.server_version < FIRST_WITH_TRUNCATE:
        return renewed
    if look.before.truncates is None or look.now.truncates is None:
        return set()
    return renewed - (look.before.truncates & look.now.truncates)


def _perhaps_unlogged(look: Look) -> set[int]:
    """Leaf partitions with a new relfilenode whose changes may not have been logged for a while."""
    if look.before.kept_logged is None or look.now.kept_logged is None:
        return set()
    return _rewritable_leaves(look) - (look.before.kept_logged & look.now.kept_logged)


def _gone_with_partitions(look: Look) -> set[str]:
    """The catalog rows that disappeared together with partitions."""
    gone = look.before.attachments.keys() - look.now.attachments.keys()
    return {row for partition in gone for row in look.before.of_partitions.get(partition, ())}


def _has_renamed_column(look: Look) -> bool:
    numbers = {column.name: number for number, column in look.before.columns.items()}
    names = {number: column.name for number, column in look.before.columns.items()}
    return any(
        numbers.get(column.name, number) != number or names.get(number, column.name) != column.name
        for number, column in look.now.columns.items()
    )


def _has_reused_name(look: Look) -> bool:
    gone = {name.casefold() for name in look.before.gone.values()}
    added = {column.name.casefold() for column in added_columns(look.before, look.now)}
    dropped = look.before.columns.keys() - look.now.columns.keys()
    just_gone = {look.before.columns[number].name.casefold() for number in dropped}
    # Names that were there at the same time differ by case: the target had only the dropped one.
    now = {column.name.casefold() for column in look.now.columns.values()}
    return bool(added & gone or now & just_gone)


def _new_columns(look: Look) -> list[str]:
    return [column.name for column in added_columns(look.before, look.now) if column.is_sent]


def _values_of_older_rows(look: Look, column: str) -> set[str | None]:
    """The value of rows that are older than a column, in each leaf that existed before."""
    leaves = look.before.filenodes.keys() & look.now.filenodes.keys()
    return {look.missing.get(leaf, {}).get(column) for leaf in leaves}


def _has_filled_columns(look: Look) -> bool:
    """Whether existing rows may have several values in an added column.

    A server that rewrites a table forgets the value of older rows. Where it has one, a new file is
    that of a TRUNCATE, or older than the column. Source: RelationClearMissing() and its caller.
    """
    is_renewed = bool(renewed_leaves(look.before, look.now))
    values = (_values_of_older_rows(look, name) for name in _new_columns(look))
    return any(len(each) > 1 or (is_renewed and None in each) for each in values)


def _has_another_type(look: Look) -> bool:
    """Whether a column has another type in the same file that the target cannot follow by a wider
    column."""
    return any(
        0 not in (before.type_oid, now.type_oid)
        and (before.type_oid, before.typmod) != (now.type_oid, now.typmod)
        and not prints_all(now.type_oid, now.typmod, before.type_oid, before.typmod)
        for before, now in _sent_columns(look)
    )


def _has_another_key(look: Look) -> bool:
    before, now = look.before.key, look.now.key
    return before is not None and now is not None and set(before) != set(now)


def _has_lost_key_index(look: Look) -> bool:
    """Whether the index that proved the key is gone. Until now, changes were applied as if keys
    were unique; so did earlier versions, without a check."""
    return bool(look.now.key) and look.now.key_index == "" != look.before.key_index


def _has_changed_type(look: Look) -> bool:
    before, now = look.before.types, look.now.types
    return any(before[part] != now[part] for part in before.keys() & now.keys())


def _has_more_actions(look: Look) -> bool:
    sends_more = not look.now.actions <= look.before.actions
    gone = {str(leaf) for leaf in lost_partitions(look)}
    of_some_leaf = {
        lacking
        for lacking in look.before.lacking - look.now.lacking
        if lacking.partition(":")[0] not in gone
    }
    return bool(look.before.actions) and (sends_more or bool(of_some_leaf))


def _has_filled_partitions(look: Look) -> bool:
    added = added_partitions(look.before, look.now)
    return bool(added - {*look.came_empty, *look.perhaps_empty})


def _may_have_filled_partitions(look: Look) -> bool:
    return bool(added_partitions(look.before, look.now) - {*look.came_empty})


_Condition = Callable[[Look], bool | Collection[object]]
_ANEW = "has a partition that was attached, and perhaps detached before"

RULES: tuple[tuple[_Condition, str], ...] = (
    # A new file and another type of a column: the rows may have other values.
    (_is_rewritten, "was rewritten by an ALTER TABLE"),
    # An attribute number identifies a column: the target has other values under the name.
    (_has_renamed_column, "has a column that was renamed, or dropped and recreated"),
    # The target's column of this name has the values of the dropped one.
    (_has_reused_name, "has a new column of the name of a dropped one"),
    # Its earlier values were not sent.
    (
        lambda look: any(not before.is_sent for before, _ in _sent_columns(look)),
        "has a column that was not sent before",
    ),
    # No change has its values for existing rows.
    (_has_filled_columns, "has a new column with several values in existing rows"),
    (_has_another_type, "has a column that is printed differently, or larger than the target's"),
    # The target's rows were identified by the other one.
    (_has_another_key, "has another key"),
    # Stored values are printed differently now.
    (_has_changed_type, "has a column whose type has another label or attribute"),
    # Updates were missed while the table had no key.
    (_has_more_actions, "sends changes that were not sent for a while"),
    # Rows that pass now were not sent.
    (
        lambda look: bool(look.before.rules) and look.before.rules != look.now.rules,
        "has another row filter, column list or mask",
    ),
    (
        lambda look: look.before.names != look.now.names,
        "has another name at the target, or a column of it has",
    ),
    # A row that listed the table in a publication is gone: some rows were not sent for a while.
    (
        lambda look: look.before.listings - look.now.listings - _gone_with_partitions(look),
        "was out of a publication for a while",
    ),
    (resumed_leaves, "has a partition that was not sent for a while"),
    # Its rows were removed without changes.
    (lost_partitions, "lost a partition"),
    # Also one that may have been, since it was seen in the stream.
    (attached_anew, "is a partition that was detached for a while, or has one"),
    # Its rows were not sent.
    (_has_filled_partitions, "got a partition that has rows"),
    # The first rows of a new leaf may be another table's.
    (
        lambda look: look.has_some_leaves and bool(added_leaves(look.before, look.now)),
        "got a partition, some of whose rows may be missing",
    ),
)
"""A condition, which is met if its result is not empty, and the text that describes it for a
table. A comment says why the stream does not carry such a difference."""

SUSPICIONS: tuple[tuple[_Condition, str], ...] = (
    # Or of a VACUUM FULL.
    (_perhaps_truncated, "has a new file, which may be that of a TRUNCATE"),
    # Or of a VACUUM FULL beside GRANT, SET DEFAULT or SET STATISTICS.
    (_may_be_rewritten, "has a new file, which may be that of an ALTER TABLE"),
    # No publication lists the leaf itself. Or TRUNCATE, VACUUM FULL.
    (_perhaps_unlogged, "has a new file, and may have been unlogged for a while"),
    # It had other actions for a while, or was SET to the same options.
    (
        lambda look: look.before.publications - look.now.publications,
        "is in a publication that was altered",
    ),
    # Created, filled and attached in one transaction, or PARTITION OF without proof in the catalog.
    (_may_have_filled_partitions, "got a partition, which may have had rows before"),
    # The table is published by its schema. Or it has another name or owner.
    (
        lambda look: look.before.row_types - look.now.row_types - _gone_with_partitions(look),
        "may have been in another schema for a while",
    ),
    # Two rows with the same key, or only DROP INDEX.
    (_has_lost_key_index, "has lost the index that kept two rows from having the same key"),
)
"""The same for differences that harmless statements also make."""

_OF_PARTITIONS = frozenset(
    {
        resumed_leaves,
        lost_partitions,
        attached_anew,
        _has_filled_partitions,
        _may_have_filled_partitions,
    }
)
_OF_NEW_FILES = frozenset({_perhaps_truncated, _perhaps_unlogged})


def _partitions_to_replace(look: Look) -> ReplacePartitions | None:
    """New leaf partitions that may have rows, and partitions whose rows are gone or replaced, if
    there is no other difference that the stream does not carry.

    The table's key distinguishes their rows from those of other leaves.
    """
    renewed = _perhaps_truncated(look) | _perhaps_unlogged(look)
    is_fresh = renewed <= {*look.fresh}  # else it is more likely VACUUM FULL: a comparison tells
    anew = attached_anew(look) | resumed_leaves(look)
    gone = lost_partitions(look) | anew | (renewed if is_fresh else set())
    if not (gone or _may_have_filled_partitions(look)) or not look.now.key or _new_columns(look):
        return None
    known = _OF_PARTITIONS | (_OF_NEW_FILES if is_fresh else frozenset())
    others = (applies for applies, _ in (*RULES, *SUSPICIONS) if applies not in known)
    if not are_rows_known(look, gone, anew) or any(applies(look) for applies in others):
        return None
    came = added_leaves(look.before, look.now)
    above = added_partitions(look.before, look.now) - came
    if above <= {*look.came_empty}:  # else leaves may have had rows before a table above them came
        came -= {*look.came_empty}
    rows = rows_to_replace(look, gone)
    is_sure = are_bounds_known(look, anew)
    return ReplacePartitions(
        frozenset(came), rows, "" if is_sure else f"table {look.table} {_ANEW}"
    )


def reconcile_source(look: Look) -> SourceVerdict:
    """What the differences of a table mean for its target."""
    if (replaced := _partitions_to_replace(look)) is not None:
        return replaced
    for applies, matter in RULES:
        if applies(look):
            return CopyAgain(f"table {look.table} {matter}")
    added = {
        name: next(iter(_values_of_older_rows(look, name)), None) for name in _new_columns(look)
    }
    for applies, matter in SUSPICIONS:
        if applies(look):
            why = f"table {look.table} {matter}"
            return CopyAgain(f"{why}, and has new columns") if added else Verify(why)
    return ColumnsAdded(added) if added else Same()
