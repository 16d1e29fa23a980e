"""A table at the source, then and now: whether rows changed without the stream telling.

The stream says nothing of an ``ALTER TABLE ... TYPE int USING a * 2`` (the type stays, every
value changes), of a column that is renamed, or dropped and made again, nor of a partition that
is attached or detached with its rows. The catalog does. The rules, in the order in which they
are asked (:data:`RULES`); the first that applies decides:

======================================  =========  =============================================
What a look finds                       Verdict    Why
======================================  =========  =============================================
new file and new column definition      park       ALTER TABLE rewrote the rows with other values
new file, server 10                     copy       TRUNCATE is not on the wire before 11
a name has another number, or a number  copy       a column is its number: the target has other
another name                                       values under that name
actions are sent that were not          copy       updates were missed while there was no key
another row filter or column list       copy       rows that pass now have not come
a leaf is sent again                    copy       its changes of the meantime have not come
a leaf is gone                          copy       its rows went with it
a new leaf, not created empty           copy       it came with rows
a new leaf of a table that has some     copy       its first rows may be another table's
leaves of its root
anything else                           same       a new file alone is VACUUM FULL or CLUSTER
======================================  =========  =============================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pgsluice.schema_rules.verdicts import CopyAgain, Park, Same

FIRST_WITH_TRUNCATE = 110000

_ALL_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class SourceFingerprint:
    """What of a table at the source is compared from look to look.

    Attributes:
        filenodes: leaf OID -> file; a plain table is its own leaf.
        columns: column -> version of its definition (xmin of its pg_attribute row).
        numbers: column -> its attnum.
        actions: what the publications send of it.
        rules: fingerprint of the row filters and columns that act on it, the server's and
            pgsluice's; empty in records from before it was kept.
        sent: the leaves whose changes the server's publications send; likewise.
    """

    filenodes: Mapping[int, int]
    columns: Mapping[str, int]
    numbers: Mapping[str, int]
    actions: frozenset[str]
    rules: str = ""
    sent: frozenset[int] = frozenset()

    def to_text(self) -> str:
        """As the subscription's record keeps it; :meth:`parse` reads it back."""
        return json.dumps(
            {
                "filenodes": {str(k): v for k, v in self.filenodes.items()},
                "columns": self.columns,
                "numbers": self.numbers,
                "actions": sorted(self.actions),
                "rules": self.rules,
                "sent": sorted(self.sent),
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> SourceFingerprint | None:
        """Read what :meth:`to_text` wrote; None from a table that was never copied."""
        if not text:
            return None
        raw = json.loads(text)
        filenodes = {int(k): v for k, v in raw["filenodes"].items()}
        numbers, actions = raw.get("numbers", {}), frozenset(raw.get("actions", ()))
        sent = frozenset(raw.get("sent", ()))
        return cls(filenodes, raw["columns"], numbers, actions, raw.get("rules", ""), sent)


@lru_cache(maxsize=10_000)
def sends_every_change(fingerprint: str) -> bool:
    """Whether the publications send all actions of a table: then no row that the source has
    deleted is still at the target."""
    known = SourceFingerprint.parse(fingerprint)
    return known is not None and known.actions >= _ALL_ACTIONS


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a table has to compare.

    Attributes:
        table: ``schema.table``, for messages.
        before, now: the fingerprints.
        server_version: of the source, such as 180000.
        created_empty: those of the new leaves that had no rows when they became partitions.
        has_some_leaves: a publication of pgsluice gives the table some leaves of its root.
    """

    table: str
    before: SourceFingerprint
    now: SourceFingerprint
    server_version: int
    created_empty: Collection[int] = ()
    has_some_leaves: bool = False


def added_leaves(before: SourceFingerprint, now: SourceFingerprint) -> set[int]:
    """Leaves that were not there."""
    return set(now.filenodes.keys() - before.filenodes.keys())


def _has_new_file(look: Look) -> bool:
    before, now = look.before.filenodes, look.now.filenodes
    return any(before[leaf] != now[leaf] for leaf in before.keys() & now.keys())


def _is_rewritten(look: Look) -> bool:
    before, now = look.before.columns, look.now.columns
    is_redefined = any(before[name] != now[name] for name in before.keys() & now.keys())
    return is_redefined and _has_new_file(look)


def _may_be_truncated(look: Look) -> bool:
    return look.server_version < FIRST_WITH_TRUNCATE and _has_new_file(look)


def _has_renamed_column(look: Look) -> bool:
    numbers = look.before.numbers
    names = {number: name for name, number in numbers.items()}
    return any(
        numbers.get(name, number) != number or names.get(number, name) != name
        for name, number in look.now.numbers.items()
    )


def _has_more_actions(look: Look) -> bool:
    return bool(look.before.actions) and not look.now.actions <= look.before.actions


def _has_other_publication_rules(look: Look) -> bool:
    return bool(look.before.rules) and look.before.rules != look.now.rules


def _has_resumed_leaves(look: Look) -> bool:
    resumed = (look.now.sent - look.before.sent) & look.before.filenodes.keys()
    return bool(look.before.sent) and bool(resumed)


def _has_lost_leaves(look: Look) -> bool:
    return bool(look.before.filenodes.keys() - look.now.filenodes.keys())


def _has_filled_leaves(look: Look) -> bool:
    return bool(added_leaves(look.before, look.now) - set(look.created_empty))


def _has_leaves_of_unknown_rows(look: Look) -> bool:
    return look.has_some_leaves and bool(added_leaves(look.before, look.now))


RULES: tuple[tuple[Callable[[Look], bool], type[Park | CopyAgain], str], ...] = (
    (
        _is_rewritten,
        Park,
        "was rewritten by an ALTER TABLE, and the stream does not carry what became of its rows",
    ),
    (_may_be_truncated, CopyAgain, "has a new file, which may be that of a TRUNCATE"),
    (_has_renamed_column, CopyAgain, "has a column that was renamed, or dropped and made again"),
    (_has_more_actions, CopyAgain, "sends changes that were not sent for a while"),
    (_has_other_publication_rules, CopyAgain, "has another row filter or column list"),
    (_has_resumed_leaves, CopyAgain, "has a partition that was not sent for a while"),
    (_has_lost_leaves, CopyAgain, "lost a partition"),
    (_has_filled_leaves, CopyAgain, "got a partition that has rows"),
    (_has_leaves_of_unknown_rows, CopyAgain, "got a partition, some of whose rows may be missing"),
)
"""Condition, verdict, and what is the matter with the table."""


def reconcile_source(look: Look) -> Same | CopyAgain | Park:
    """What a look at a table means for its target. Pure."""
    for applies, verdict, matter in RULES:
        if applies(look):
            why = f"{look.table} {matter}"
            if verdict is CopyAgain:
                return CopyAgain(why)
            return Park(why, hint=f"copy the table again: pgsluice copy CONFIG {look.table}")
    return Same()
