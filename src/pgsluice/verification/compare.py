"""Compares a table with its target, and finds the keys that differ.

One pass over each side computes the digests of its buckets. If all are equal, so are the tables.
Otherwise the rows of differing buckets are read, a bounded number at a time: one more pass, and
further passes only while fewer keys were found than the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from pgsluice.errors import PgsluiceError
from pgsluice.verification.digest import MOST_SHOWN, Digest, Digests, Int64s, Key, Mask
from pgsluice.verification.masked_text import give_secrets
from pgsluice.verification.page_ranges import EVERYTHING, Extent, page_ranges
from pgsluice.verification.postgres_text import TextForm
from pgsluice.verification.source import ComparedTable, SourceSide, one_snapshot, rejected_at_source
from pgsluice.verification.target import DeltaRows, KeyRanges, Rejected, TargetRows, TargetSide

BUCKETS = 8192
"""The number of buckets; so few that the server groups them within its default work_mem (4 MB)."""
SMALL_BUCKETS = 128 * BUCKETS
"""For rows of :data:`BUCKETS` that differ: this process holds 24 bytes for each, of each side."""
_ROWS_A_PASS = 200_000
ROWS_OF_RANGES = 200_000
"""If ranges that differ have more rows, or too many to be returned, smaller ones are looked for."""
_ROWS_OF_A_SMALL_RANGE = 16
"""Rows of a range are in as many files of the target."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Keys are tuples of text forms, in the key's order. The key of a row in a table without key are
    its values, cut, repeated as often as the numbers of such rows differ.

    Attributes:
        table: ``schema.table``.
        missing_keys: keys at the source that the target lacks.
        extra_keys: keys at the target that the source lacks.
        differing_keys: keys whose rows have other values at the target.
        has_more: more keys differ than are listed.
        has_key: the keys are the table's; otherwise they are values of rows.
        ranges: the ranges of keys that differ, if they were asked for and are few.
        sampled: the part of the ranges of keys that was compared; the digests have only these.
    """

    table: str
    source: Digest
    target: Digest
    missing_keys: tuple[Key, ...] = ()
    extra_keys: tuple[Key, ...] = ()
    differing_keys: tuple[Key, ...] = ()
    has_more: bool = False
    has_key: bool = True
    ranges: KeyRanges | None = None
    sampled: float = 1.0

    @property
    def equal(self) -> bool:
        return self.source == self.target

    def __str__(self) -> str:
        if self.equal:
            return f"{self.table}: equal, {self.source.rows} rows"
        return f"{self.table}: {self.differences}"

    @property
    def differences(self) -> str:
        """A sentence with the numbers of rows, and the differing keys."""
        parts = [f"{self.source.rows} rows at the source, {self.target.rows} here"]
        named = (
            ("missing", self.missing_keys),
            ("not at the source", self.extra_keys),
            ("differing", self.differing_keys),
        )
        shown = _print_key if self.has_key else _print_row
        parts += [f"{name}: {', '.join(map(shown, keys))}" for name, keys in named if keys]
        return "; ".join(parts) + (", and more" if self.has_more else "")


def compare(
    connection: psycopg.Connection[Any],
    table: str | ComparedTable,
    target: str | Path | TargetRows,
    *,
    key: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    max_keys: int = 10,
    most_in_ranges: float = 0.0,
    has_small_ranges: bool = False,
    helpers: Sequence[psycopg.Connection[Any]] = (),
    rejected: Rejected = MappingProxyType({}),
    extent: Extent = EVERYTHING,
) -> Comparison:
    """Compare one table with its target.

    The caller makes sure that the target is at the position at which the source is read: nobody
    writes to the source, or it is read in the caller's transaction.

    Args:
        connection: to the source. Outside a transaction a new one is begun, so that all passes
            have the same snapshot.
        table: ``schema.table``, a partitioned table by its root; or the
            result of :meth:`ComparedTable.find`.
        target: a Delta table's folder (its newest version), or rows.
        key: the columns that identify a row; None: the table's own key.
        columns: the columns to compare; None: all of ``table``.
        max_keys: how many keys of each kind are listed; 0: none are looked for, so that both
            sides are read only once.
        most_in_ranges: the ranges of keys that differ are found, if they have at most this part of
            the table's rows; 0.0: they are not looked for.
        has_small_ranges: if ranges that differ have many rows each, both sides are read once more,
            for smaller ranges.
        helpers: more sessions to read the source with, each in a transaction with the snapshot of
            ``connection``.
        rejected: see :class:`pgsluice.verification.target.TargetSide`.
        extent: how much is read, and how fast.

    Raises:
        PgsluiceError: no such table, target or column.
        psycopg.Error: the source failed.
    """
    rows = DeltaRows(target) if isinstance(target, str | Path) else target
    with ExitStack() as stack:
        stack.enter_context(one_snapshot(connection))
        for helper in helpers:
            stack.enter_context(one_snapshot(helper))
        facts = ComparedTable.find(connection, table) if isinstance(table, str) else table
        by_name = {column.name: column for column in facts.columns}
        names = tuple(by_name) if columns is None else tuple(columns)
        key_names = tuple(facts.key if key is None else key)
        if unknown := [name for name in (*names, *key_names) if name not in by_name]:
            raise PgsluiceError(
                f"{facts.title} has no replicated column {unknown[0]}", table=facts.title
            )
        names += tuple(name for name in key_names if name not in names)
        is_old = connection.info.server_version < 120000
        forms = {
            name: TextForm(by_name[name].delimiter, not is_old, by_name[name].is_array)
            for name in names
        }
        sessions = (connection, *helpers)
        for session in sessions:
            give_secrets(session, facts.masks.values())
        name = sql.Identifier(facts.namespace, facts.name)
        ranges_of_pages = page_ranges(connection, name, len(sessions), extent)
        ours = SourceSide(sessions, facts, rows.schema, names, key_names, ranges_of_pages)
        rejects = rejected_at_source(connection, facts, rows.schema, rejected)
        theirs = TargetSide(rows, names, key_names, forms, rejects)
        # The server works while the target's rows are hashed here.
        buckets = _side_by_side(ours, theirs, BUCKETS, extent.chosen(BUCKETS))
        differences = _differences(ours, theirs, *buckets, max_keys)
        ranges = None
        # Other sessions use the condition, and have no secrets of masks.
        if most_in_ranges and key_names and not facts.masks.keys() & {*key_names}:
            form_of_key = [(name, forms[name]) for name in key_names]
            most_in_each = _ROWS_OF_A_SMALL_RANGE if has_small_ranges else None
            ranges = _differing_ranges(
                ours, theirs, buckets, most_in_ranges, most_in_each, form_of_key
            )
        source, target_digest = (side.total() for side in buckets)
        has_key, sampled = bool(key_names), extent.sample
        return Comparison(
            facts.title, source, target_digest, *differences, has_key, ranges, sampled
        )


def _side_by_side(
    source: SourceSide, target: TargetSide, count: int, within: Mask | None = None
) -> tuple[Digests, Digests]:
    """The digests of both sides' buckets: the server works while this process does."""
    with ThreadPoolExecutor(1) as source_thread:
        ours = source_thread.submit(source.buckets, count, within)
        theirs = target.buckets(count, within)
        return ours.result(), theirs


def _differing_ranges(
    source: SourceSide,
    target: TargetSide,
    digests: tuple[Digests, Digests],
    most: float,
    most_in_each: int | None,
    key: Sequence[tuple[str, TextForm]],
) -> KeyRanges | None:
    """The ranges of keys that differ; None: they have a larger part of the rows than ``most``.

    Where many rows differ, some in each range, both sides are read once more by smaller ranges;
    also where ranges have more than ``most_in_each`` rows on average.
    """
    total = max(int(side.rows.sum()) for side in digests)

    def rows_of(ours: Digests, theirs: Digests, chosen: Mask) -> int:
        return int(np.maximum(ours.rows, theirs.rows)[chosen].sum())

    differing = digests[0].differs_from(digests[1])
    rows = rows_of(*digests, differing)
    at_least = int(np.abs(digests[0].rows - digests[1].rows).sum())
    enough = min(ROWS_OF_RANGES, most * total)
    if most_in_each is not None:
        enough = min(enough, most_in_each * int(differing.sum()))
    if rows > enough and at_least <= most * total:
        digests = _side_by_side(source, target, SMALL_BUCKETS, differing)
        differing = digests[0].differs_from(digests[1])
        rows = rows_of(*digests, differing)
    if rows > most * total:
        return None
    return KeyRanges(tuple(key), differing, rows, source.condition(differing))


def _differences(
    source: SourceSide, target: TargetSide, ours: Digests, theirs: Digests, max_keys: int
) -> tuple[tuple[Key, ...], tuple[Key, ...], tuple[Key, ...], bool]:
    """The missing, extra and differing keys, and whether there are more."""
    differing = ours.differs_from(theirs)
    if not max_keys:
        return (), (), (), bool(differing.any())
    missing: list[Key] = []
    extra: list[Key] = []
    changed: list[Key] = []
    for chosen in _passes(differing, np.maximum(ours.rows, theirs.rows)):
        there, here = source.rows(chosen), target.rows(chosen)
        for key in sorted(there.keys() | here.keys(), key=_order):
            at_source, at_target = Counter(there.get(key, ())), Counter(here.get(key, ()))
            surplus = at_target.total() - at_source.total()
            if surplus:
                (extra if surplus > 0 else missing).extend([key] * abs(surplus))
            elif at_source != at_target:
                changed.append(key)
        if max(len(missing), len(extra), len(changed)) > max_keys:
            break
    has_more = max(len(missing), len(extra), len(changed)) > max_keys
    cut = slice(0, max_keys)
    return tuple(missing[cut]), tuple(extra[cut]), tuple(changed[cut]), has_more


def _passes(differing: Mask, sizes: Int64s) -> Iterator[Mask]:
    """Group the buckets, so that the rows of a group fit into memory."""
    chosen, held = np.zeros_like(differing), 0
    for bucket in np.flatnonzero(differing):
        if chosen.any() and held + sizes[bucket] > _ROWS_A_PASS:
            yield chosen
            chosen, held = np.zeros_like(differing), 0
        chosen[bucket] = True
        held += int(sizes[bucket])
    if chosen.any():
        yield chosen


def _order(key: Key) -> tuple[tuple[int, str], ...]:
    """A sort key: NULL first, then by length, which puts whole numbers in order."""
    return tuple((-1, "") if text is None else (len(text), text) for text in key)


def _print_key(key: Key) -> str:
    texts = ["NULL" if text is None else text for text in key]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _print_row(values: Key) -> str:
    cut = (v[:MOST_SHOWN] + "…" if v is not None and len(v) > MOST_SHOWN else v for v in values)
    return f"({', '.join('NULL' if text is None else text for text in cut)})"
