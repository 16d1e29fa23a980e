"""What the last catalog refresh knows of a table: its fingerprint, and values derived from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

_NEVER = 0
"""An xmin that no row has."""
ALL_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


class ColumnState(NamedTuple):  # a tuple, because a look makes tens of thousands
    """A column of the table at a catalog refresh.

    Attributes:
        version: xmin of its row in pg_attribute, which harmless statements change, too.
        type_oid, typmod: its type and typmod, for a domain those of the base type; 0 if unknown.
    """

    name: str
    version: int
    type_oid: int = 0
    typmod: int = -1
    is_sent: bool = True


def _by_number(raw: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in raw.items()}


def _rows(raw: Mapping[str, list[str]]) -> dict[int, tuple[str, ...]]:
    return {int(number): tuple(rows) for number, rows in raw.items()}


def _columns(raw: Mapping[str, list[Any]]) -> dict[int, ColumnState]:
    return {int(number): ColumnState(*state) for number, state in raw.items()}


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "frozenset[": frozenset,
    "tuple[": tuple,
    "Mapping[int, ColumnState]": _columns,
    "Mapping[int, tuple[": _rows,
    "Mapping[int, int]": _by_number,
    "Mapping[int, str]": _by_number,
}
"""Decoders of the fields that have no JSON type, by how their types begin; None stays None."""


@dataclass(frozen=True, slots=True)
class SourceFingerprint:
    """The properties of a source table that consecutive catalog refreshes compare.

    Properties that records of earlier versions lack are empty, and nothing follows from them.

    Attributes:
        filenodes: leaf OID -> relfilenode; a plain table is its own leaf.
        columns: attnum -> column.
        attnums: the number of columns that it has ever had; 0: unknown.
        actions: the actions that the publications send of it, or of some of its leaves.
        lacking: ``OID:action`` for each action of a relation that they do not send.
        rules: fingerprint of its row filters and column lists, those of the server and of
            pgsluice's own publications.
        sent: the leaf partitions whose changes the server's publications send.
        truncates: the leaf partitions whose TRUNCATEs are all in the stream; None: unknown.
        types: parts of the columns' types (labels, attributes) -> their versions.
        listings: the catalog rows that list it in the server's publications.
        of_partitions: partitions below it -> those of ``listings`` and ``row_types`` that disappear
            with the partition.
        attachments: it and those above it that are partitions, and all below it -> xmin of their
            row in pg_inherits.
        publications: the rows of the publications that list it, as ``OID:xmin``.
        row_types: the rows of row types, as ``OID:xmin``, where a schema is published.
        kept_logged: the leaf partitions that the server does not let become UNLOGGED; None:
            unknown.
        toast_tables: leaf OID -> its TOAST table, for leaves with one.
        bounds: partition OID -> an SQL condition on its rows in the table, for partitions whose
            bounds depend on key columns only (:mod:`pgsluice.catalog.partitions.bounds`).
        fixed: those of ``bounds`` that are true for no other row, regardless of other partitions;
            None: unknown.
        parents: for ``bounds``: a partition below another one -> the partition directly above.
        emptied: leaf partitions that a refresh found without rows -> the end of the server's WAL
            after it. Up to there they may have had rows while they were attached earlier.
        gone: columns that were dropped since the copy: attnum -> their name at the target. A column
            that was added and dropped between two refreshes is never at the target. Names that a
            target has kept from before its copy have negative numbers.
        settled: the number of attnums that existed before all changes that were not yet applied at
            the refresh.
        open_numbers: those of ``gone`` that may have been dropped since.
        key: the columns that identify the target's rows; None: unknown.
        key_index: the index that proves that keys are unique; empty: there is none; None: unknown.
        key_index_from: changes up to this LSN may be older than that index; 0: none are.
        added: columns that were added since the copy -> the value of older rows, as text.
        written: a text that changes when a catalog row that describes the table or its key is
            written.
        names: its names at the target, if they are others; else empty.
    """

    filenodes: Mapping[int, int]
    columns: Mapping[int, ColumnState]
    actions: frozenset[str]
    lacking: frozenset[str] = frozenset()
    rules: str = ""
    sent: frozenset[int] = frozenset()
    attnums: int = 0
    truncates: frozenset[int] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    listings: frozenset[str] = frozenset()
    of_partitions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    attachments: Mapping[int, int] = field(default_factory=dict)
    publications: frozenset[str] = frozenset()
    row_types: frozenset[str] = frozenset()
    kept_logged: frozenset[int] | None = None
    toast_tables: Mapping[int, int] = field(default_factory=dict)
    bounds: Mapping[int, str] = field(default_factory=dict)
    fixed: frozenset[int] | None = None
    parents: Mapping[int, int] = field(default_factory=dict)
    gone: Mapping[int, str] = field(default_factory=dict)
    settled: int = 0
    open_numbers: frozenset[int] = frozenset()
    key: tuple[str, ...] | None = None
    added: Mapping[str, str | None] = field(default_factory=dict)
    written: str = ""
    key_index: str | None = None
    key_index_from: int = 0
    emptied: Mapping[int, int] = field(default_factory=dict)
    names: str = ""

    def following(
        self,
        before: SourceFingerprint,
        added: Mapping[str, str | None] | None = None,
        *,
        is_caught_up: bool = False,
        looked_at: int = 0,
        emptied: Collection[int] = (),
    ) -> SourceFingerprint:
        """This fingerprint as the baseline for the next refresh: it also has dropped columns that
        may still be at the target.

        Args:
            before: the fingerprint of the refresh before.
            added: columns that this refresh found -> the value of older rows.
            is_caught_up: all changes from before that refresh are applied.
            looked_at: the end of the server's WAL after the refresh.
            emptied: leaf partitions that this refresh found, and that may have had rows before it.
        """
        has_new_proof = before.key_index == "" and bool(self.key_index)
        dropped = before.columns.keys() - self.columns.keys()
        names = {number: c.name for number in dropped if (c := before.columns[number]).is_sent}
        following = replace(
            self,
            gone={**before.gone, **names},
            settled=before.settled,
            open_numbers=before.open_numbers,
            added={**before.added, **(added or {})},
            key_index_from=looked_at if has_new_proof else before.key_index_from,
            emptied={
                **{leaf: at for leaf, at in before.emptied.items() if leaf in self.filenodes},
                **dict.fromkeys(emptied, looked_at),
            },
        )
        if following == before:
            return following
        if is_caught_up:
            numbers = before.attnums or max(before.columns, default=0)
            return replace(following, settled=numbers, open_numbers=frozenset(dropped))
        return replace(following, open_numbers=before.open_numbers | dropped)

    def with_kept(self, names: Iterable[str]) -> SourceFingerprint:
        """This fingerprint for a target that keeps these columns from before its copy."""
        return replace(self, gone={-at: name for at, name in enumerate(sorted(names), 1)})

    def with_leaves_of(self, later: SourceFingerprint) -> SourceFingerprint:
        """The same fingerprint, with the leaf partitions that only a later refresh has found and
        whose rows may be at the target. The next refresh treats them as attached again."""
        leaves = later.filenodes.keys() - self.filenodes.keys()

        def and_sets(ours: frozenset[int] | None, theirs: frozenset[int] | None) -> Any:
            return None if ours is None or theirs is None else ours | (theirs & leaves)

        def and_maps(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> Mapping[int, Any]:
            return {**ours, **{leaf: theirs[leaf] for leaf in leaves & theirs.keys()}}

        return replace(
            self,
            filenodes=and_maps(self.filenodes, later.filenodes),
            attachments={**self.attachments, **dict.fromkeys(leaves, _NEVER)},
            toast_tables=and_maps(self.toast_tables, later.toast_tables),
            bounds={**later.bounds, **self.bounds},
            parents={**later.parents, **self.parents},
            sent=and_sets(self.sent, later.sent),
            truncates=and_sets(self.truncates, later.truncates),
            kept_logged=and_sets(self.kept_logged, later.kept_logged),
            fixed=and_sets(self.fixed, later.fixed),
        )

    def rows_at_any_time(self, partition: int) -> str | None:
        """An SQL condition on the rows that a partition can have had since it was attached,
        regardless of other partitions: its own bound, or one above it; None: any rows."""
        fixed = self.fixed or frozenset()
        return next((self.bounds[one] for one in self._path(partition) if one in fixed), None)

    def rows_until(self, later: SourceFingerprint, partition: int) -> str | None:
        """As :meth:`rows_at_any_time`, between this refresh and a later one; None also if it, or a
        partition above it, was detached meanwhile."""
        path = list(self._path(partition))
        if any(self.attachments.get(one) != later.attachments.get(one, _NEVER) for one in path):
            return None
        return self.rows_at_any_time(partition)

    def leaves_below(self, partition: int) -> set[int]:
        """The leaf partitions below a partition; none for a leaf."""
        if partition in self.filenodes:
            return set()
        return {leaf for leaf in self.filenodes if partition in self._path(leaf)}

    def _path(self, partition: int) -> Iterator[int]:
        """A partition, and the partitions above it."""
        above: int | None = partition
        while above is not None:
            yield above
            above = self.parents.get(above)

    def to_text(self) -> str:
        """Encode it as text for the subscription's record; :meth:`parse` decodes it."""
        raw = {name: getattr(self, name) for name in self.__slots__}
        for name, value in raw.items():
            if isinstance(value, frozenset):
                raw[name] = sorted(value)
        return json.dumps(raw, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> SourceFingerprint | None:
        """Decode the text of :meth:`to_text`; None for a table that was never copied."""
        return _parsed(text) if text else None


_DECODER_OF = {
    each.name: decode
    for each in fields(SourceFingerprint)
    for kind, decode in _DECODERS.items()
    if str(each.type).startswith(kind)
}


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> SourceFingerprint:
    """As :meth:`parse`, with a cache: a refresh asks several times, and few tables change in
    between."""
    raw = json.loads(text)
    values = {
        name: value if value is None or name not in _DECODER_OF else _DECODER_OF[name](value)
        for name, value in raw.items()
    }
    return SourceFingerprint(**values)


def added_columns(before: SourceFingerprint, now: SourceFingerprint) -> list[ColumnState]:
    """The columns that are new; none if the earlier columns are unknown."""
    if not before.columns:
        return []
    return [now.columns[number] for number in now.columns.keys() - before.columns.keys()]


def rows_of_partitions(
    fingerprint: str, partitions: Collection[int]
) -> dict[int, tuple[str, ...]] | None:
    """SQL conditions on the rows of a table that some partitions can have had.

    Args:
        partitions: partitions of the table. One that the fingerprint lacks was added and removed
            since.

    Returns:
        None: any rows are possible, or there is no partition.
    """
    known = SourceFingerprint.parse(fingerprint)
    if known is None or not partitions:
        return None
    there = known.filenodes.keys() | known.attachments.keys()
    rows = {one: known.rows_at_any_time(one) if one in there else "false" for one in partitions}
    found: dict[int, tuple[str, ...]] = {
        one: (condition,) for one, condition in rows.items() if condition is not None
    }
    return found if len(found) == len(rows) else None


def sends_every_change(fingerprint: str) -> bool:
    """Whether the publications send all actions of a table and of each of its leaves: then the
    target has no row that was deleted at the source."""
    known = SourceFingerprint.parse(fingerprint)
    return known is not None and known.actions >= ALL_ACTIONS and not known.lacking


def is_key_proved(fingerprint: str, after: int) -> bool:
    """Whether the source guarantees that two rows never have the same key; true if nothing is
    known of it, as in records of earlier versions.

    Args:
        after: the question concerns changes later than this LSN.
    """
    known = SourceFingerprint.parse(fingerprint)
    if known is None or known.key_index is None:
        return True
    return known.key_index != "" and after >= known.key_index_from


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """The columns of a table at its last catalog refresh, and since when they exist.

    Attributes:
        types: the sent columns: name -> type OID and typmod.
        added: see :class:`SourceFingerprint`.
        key, gone, settled, open_numbers: as in :class:`SourceFingerprint`.
        names: attnum -> name, for all columns; empty: unknown.
        unsent: the attnums of columns that are not sent.
        attnums: the number of columns that the table has ever had.
    """

    types: Mapping[str, tuple[int, int]]
    added: Mapping[str, str | None] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    unsent: frozenset[int] = frozenset()
    attnums: int = 0
    gone: Mapping[int, str] = field(default_factory=dict)
    settled: int = 0
    open_numbers: frozenset[int] = frozenset()

    def name_at_target(self, number: int) -> str | None:
        """The target's name for the column with an attnum; None: the target does not have it."""
        if number in self.names:
            return self.names[number]
        name = self.gone.get(number)
        is_taken = name is None or name.casefold() in {n.casefold() for n in self.names.values()}
        return None if is_taken else name

    def is_gone(self, name: str) -> bool:
        """Whether the target has a column of this name that was dropped at the source."""
        return name in self.gone.values() and name not in self.names.values()

    def was_there(self, number: int, *, is_later: bool) -> bool:
        """Whether a column existed before a change: it had been added and not dropped.

        Args:
            is_later: the change is newer than the last refresh.
        """
        if is_later:
            return number in self.names
        return number <= self.settled and (number in self.names or number in self.open_numbers)

    def was_dropped(self, number: int, *, is_later: bool) -> bool:
        """Whether a column had been dropped before a change; the arguments are those of
        :meth:`was_there`."""
        had_come = number <= (self.attnums if is_later else self.settled)
        return had_come and not self.was_there(number, is_later=is_later)


@lru_cache(maxsize=10_000)
def known_columns(fingerprint: str) -> KnownColumns | None:
    """The columns of a table in a fingerprint's text, as in the record; None without one."""
    known = SourceFingerprint.parse(fingerprint)
    if known is None:
        return None
    columns = known.columns
    return KnownColumns(
        types={c.name: (c.type_oid, c.typmod) for c in columns.values() if c.is_sent},
        added=known.added,
        key=known.key,
        names={number: column.name for number, column in columns.items()},
        unsent=frozenset(number for number, column in columns.items() if not column.is_sent),
        attnums=known.attnums or max(columns, default=0),
        gone=known.gone,
        settled=known.settled,
        open_numbers=known.open_numbers,
    )


def cause_of_copy(reason: str, fingerprint: str) -> str:
    """A digest of the cause of a copy: a reason, and the state of the table in the catalog. 16 hex
    digits.

    If the same cause appears again after a copy, another copy would not help. The digest ignores
    changes that a copy itself makes in the record, and new files.
    """
    known = SourceFingerprint.parse(fingerprint)
    facts: list[Any] = [reason]
    if known is not None:
        facts += [known.written, known.rules, known.attnums, sorted(known.columns.items())]
        facts += [sorted(each) for each in (known.actions, known.listings, known.filenodes)]
        facts += [sorted(known.types.items()), known.key]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
