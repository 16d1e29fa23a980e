"""What the last look knows of a table: its fingerprint, and what is derived from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

_NEVER = 0
"""The xmin of no row."""
ALL_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


class ColumnState(NamedTuple):  # a tuple, because a look makes tens of thousands
    """A column of the table at the time of a look.

    Attributes:
        version: xmin of its row in pg_attribute, which also changes with what is harmless.
        type_oid, typmod: of the type below a domain; 0 where they are not known.
    """

    name: str
    version: int
    type_oid: int = 0
    typmod: int = -1
    is_sent: bool = True


def _by_number(raw: Mapping[str, int]) -> dict[int, int]:
    return {int(number): value for number, value in raw.items()}


def _bounds(raw: Mapping[str, str]) -> dict[int, str]:
    return {int(number): condition for number, condition in raw.items()}


def _rows(raw: Mapping[str, list[str]]) -> dict[int, tuple[str, ...]]:
    return {int(number): tuple(rows) for number, rows in raw.items()}


def _columns(raw: Mapping[str, list[Any]]) -> dict[int, ColumnState]:
    return {int(number): ColumnState(*state) for number, state in raw.items()}


def _names(raw: Mapping[str, str]) -> dict[int, str]:
    return {int(number): name for number, name in raw.items()}


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "filenodes": _by_number,
    "attachments": _by_number,
    "toast_tables": _by_number,
    "parents": _by_number,
    "emptied": _by_number,
    "bounds": _bounds,
    "of_partitions": _rows,
    "columns": _columns,
    "key": tuple,
    **dict.fromkeys(
        ("actions", "lacking", "sent", "truncates", "listings", "publications", "row_types"),
        frozenset,
    ),
    **dict.fromkeys(("kept_logged", "open_numbers", "fixed"), frozenset),
    "gone": _names,
}
"""How JSON's values of fields are read that JSON has no type for; None stays None."""


@dataclass(frozen=True, slots=True)
class SourceFingerprint:
    """What of a table at the source is compared from look to look.

    What records of earlier versions do not have is empty, and nothing is concluded from it.

    Attributes:
        filenodes: leaf OID -> file; a plain table is its own leaf.
        columns: attnum -> column.
        attnums: how many columns it has had; 0: not known.
        actions: what the publications send of it, or of some of its leaves.
        lacking: ``OID:action`` for each action that they do not send of a relation.
        rules: fingerprint of the row filters and columns that act on it, the server's and
            pgsluice's.
        sent: the leaves whose changes the server's publications send.
        truncates: the leaves of which the stream has every TRUNCATE; None: not known.
        types: parts of the columns' types (labels, attributes) -> their versions.
        listings: the rows that put it into the server's publications.
        of_partitions: partitions below it -> those of ``listings`` and ``row_types`` that are gone
            with the partition.
        attachments: it and those above it that are partitions, and all below it -> xmin of their
            row in pg_inherits.
        publications: the rows of the publications that list it, as ``OID:xmin``.
        row_types: the rows of row types, as ``OID:xmin``, where a schema is published.
        kept_logged: the leaves that the server does not let become UNLOGGED; None: not known.
        toast_tables: leaf OID -> its TOAST table, of leaves that have one.
        bounds: partition OID -> which rows of the table it may have, as SQL, of those below it
            whose bounds the key's columns decide (:mod:`pgsluice.catalog.partitions.bounds`).
        fixed: those of ``bounds`` that are true for no other row, whichever other partitions there
            are; None: not known.
        parents: of ``bounds``, those below another one -> the partition right above.
        emptied: leaves that a look found without rows -> where the server's WAL ended after it. Up
            to there they may have had rows while they were attached before.
        gone: columns that were dropped since the copy: attnum -> the name that they have at the
            target. One that came and went between two looks is never at the target.
        settled: how many attnums there were before all changes that were not applied when the
            look came.
        open_numbers: those of ``gone`` that were dropped since, and not before; None: any.
        key: the columns that tell the target's rows apart; None: not known.
        key_index: the index that proves that no two rows have the same key; empty: none does;
            None: not known.
        key_index_from: changes up to this LSN may be from before that index was made; 0: none are.
        added: columns that came since the copy -> the value, as text, of rows from before them.
        written: another text when a row of the catalog that describes it or its key was written.
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
    open_numbers: frozenset[int] | None = frozenset()
    key: tuple[str, ...] | None = None
    added: Mapping[str, str | None] = field(default_factory=dict)
    written: str = ""
    key_index: str | None = None
    key_index_from: int = 0
    emptied: Mapping[int, int] = field(default_factory=dict)

    def following(
        self,
        before: SourceFingerprint,
        added: Mapping[str, str | None] | None = None,
        *,
        is_caught_up: bool = False,
        looked_at: int = 0,
        emptied: Collection[int] = (),
    ) -> SourceFingerprint:
        """This look's fingerprint as the next look is compared with it: with the columns that
        the target may have, though the table has them no longer.

        Args:
            before: the look's before.
            added: columns that are new at this look -> the value of rows from before them.
            is_caught_up: all changes from before that look are applied.
            looked_at: where the server's WAL ended after the look.
            emptied: leaves that are new at this look, and may have had rows before it.
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
        if before.open_numbers is None:
            return following
        return replace(following, open_numbers=before.open_numbers | dropped)

    def with_leaves_of(self, later: SourceFingerprint) -> SourceFingerprint:
        """The same, with the leaves that a later look has found besides, whose rows the target may
        have or not. A look that is compared with it takes them for attached anew."""
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
        """Which rows a partition may have had since it was attached, whichever others there were:
        its own bound, or that of one above it; None: any."""
        fixed = self.fixed or frozenset()
        return next((self.bounds[one] for one in self._path(partition) if one in fixed), None)

    def rows_until(self, later: SourceFingerprint, partition: int) -> str | None:
        """The same from this look to a later one; None also if it was detached meanwhile, or one
        above it."""
        path = list(self._path(partition))
        if any(self.attachments.get(one) != later.attachments.get(one, _NEVER) for one in path):
            return None
        return self.rows_at_any_time(partition)

    def leaves_below(self, partition: int) -> set[int]:
        """The leaves below a partition; none of a leaf."""
        if partition in self.filenodes:
            return set()
        return {leaf for leaf in self.filenodes if partition in self._path(leaf)}

    def _path(self, partition: int) -> Iterator[int]:
        """A partition, and those above it."""
        above: int | None = partition
        while above is not None:
            yield above
            above = self.parents.get(above)

    def to_text(self) -> str:
        """As the subscription's record keeps it; :meth:`parse` reads it back."""
        raw = {name: getattr(self, name) for name in self.__slots__}
        for name, value in raw.items():
            if isinstance(value, frozenset):
                raw[name] = sorted(value)
        return json.dumps(raw, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> SourceFingerprint | None:
        """Read what :meth:`to_text` wrote; None from a table that was never copied."""
        return _parsed(text) if text else None


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> SourceFingerprint:
    """The same for the same text: a look asks several times, and few tables change in between."""
    raw = json.loads(text)
    if "gone" not in raw:  # of an earlier version, which knew former columns by their names only
        raw.pop("unnamed", None)
        raw["gone"] = {-at: name for at, name in enumerate(raw.pop("former_names", ()), 1)}
        raw["open_numbers"] = None
    values = {
        name: value if value is None or name not in _DECODERS else _DECODERS[name](value)
        for name, value in raw.items()
    }
    return SourceFingerprint(**values)


def added_columns(before: SourceFingerprint, now: SourceFingerprint) -> list[ColumnState]:
    """Columns that were not there; none where those of before are not known."""
    if not before.columns:
        return []
    return [now.columns[number] for number in now.columns.keys() - before.columns.keys()]


def rows_of_partitions(
    fingerprint: str, partitions: Collection[int]
) -> dict[int, tuple[str, ...]] | None:
    """Which rows of a table some partitions may have had, each condition as SQL.

    Args:
        partitions: below the table. One that the fingerprint does not have has come and gone.

    Returns:
        None: all rows, or there is no partition.
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


@lru_cache(maxsize=10_000)
def sends_every_change(fingerprint: str) -> bool:
    """Whether the publications send all actions of a table and of each of its leaves: then no row
    that the source has deleted is still at the target."""
    known = SourceFingerprint.parse(fingerprint)
    return known is not None and known.actions >= ALL_ACTIONS and not known.lacking


@lru_cache(maxsize=10_000)
def is_key_proved(fingerprint: str, after: int) -> bool:
    """Whether the source makes sure that no two rows have the same key, as far as is known: of
    records of earlier versions nothing is concluded.

    Args:
        after: all changes that are asked about are later than this LSN.
    """
    known = SourceFingerprint.parse(fingerprint)
    if known is None or known.key_index is None:
        return True
    return known.key_index != "" and after >= known.key_index_from


@lru_cache(maxsize=10_000)
def sent_leaves(fingerprint: str) -> frozenset[int]:
    """The leaves of a table that the server's publications send; a plain table is its own."""
    known = SourceFingerprint.parse(fingerprint)
    return frozenset() if known is None else known.sent


@lru_cache(maxsize=10_000)
def known_leaves(fingerprint: str) -> Mapping[int, int] | None:
    """The leaves of a table that a look has found -> changes up to this LSN may be from before
    that, when the leaf had another bound; 0: none are. None without a look."""
    known = SourceFingerprint.parse(fingerprint)
    return None if known is None else {leaf: known.emptied.get(leaf, 0) for leaf in known.filenodes}


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """The columns that are sent, and how they came.

    Attributes:
        types: name -> type OID and typmod, of the columns that are sent.
        added: see :class:`SourceFingerprint`.
        key, gone, settled, open_numbers: likewise.
        names: attnum -> name, of all columns; empty: not known.
        unsent: the attnums of those that are not sent.
        attnums: how many the table has had.
    """

    types: Mapping[str, tuple[int, int]]
    added: Mapping[str, str | None] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    unsent: frozenset[int] = frozenset()
    attnums: int = 0
    gone: Mapping[int, str] = field(default_factory=dict)
    settled: int = 0
    open_numbers: frozenset[int] | None = frozenset()

    def name_at_target(self, number: int) -> str | None:
        """What the target calls a column of an attnum; None: it does not have it."""
        if number in self.names:
            return self.names[number]
        name = self.gone.get(number)
        is_taken = name is None or name.casefold() in {n.casefold() for n in self.names.values()}
        return None if is_taken else name

    def was_there(self, number: int, *, is_later: bool) -> bool:
        """Whether a column was there before a change: it had come, and it was not dropped.

        Args:
            is_later: the change is from after the last look.
        """
        if is_later:
            return number in self.names
        is_open = self.open_numbers is None or number in self.open_numbers
        return number <= self.settled and (number in self.names or is_open)

    def was_dropped(self, number: int, *, is_later: bool) -> bool:
        """Whether a column had been dropped before a change; arguments as above."""
        had_come = number <= (self.attnums if is_later else self.settled)
        return had_come and not self.was_there(number, is_later=is_later)


@lru_cache(maxsize=10_000)
def known_columns(fingerprint: str) -> KnownColumns | None:
    """What a fingerprint, as the record keeps it, says of a table's columns; None without one."""
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
    """What a copy is made for: a reason, and what the catalog says of the table. 16 hex digits.

    A table that comes to the same again after its copy would be copied for ever. What a copy
    itself changes in the record, and new files, make no difference.
    """
    known = SourceFingerprint.parse(fingerprint)
    facts: list[Any] = [reason]
    if known is not None:
        facts += [known.written, known.rules, known.attnums, sorted(known.columns.items())]
        facts += [sorted(each) for each in (known.actions, known.listings, known.filenodes)]
        facts += [sorted(known.types.items()), known.key]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
