"""A table's shape at the source: what shows that its rows changed without the stream telling.

The stream says nothing of an ``ALTER TABLE ... TYPE int USING a * 2`` (the type stays, every
value changes), of a column that was renamed, or dropped and made again, nor of a partition
that is attached or detached with its rows. The catalog does (contracts, sections 3 and 5): a
table whose file is another *and* whose column definitions were written again was rewritten
with other values; a new file alone is VACUUM FULL or CLUSTER and means nothing, but on server 10 it
may be a TRUNCATE, which is not on the wire before 11. A column is
its number: a name with another number, or a number with another name, has values that the
target does not have under that name. And a table whose updates were not published for a while
(its key was dropped and came back) has missed some. So has one whose row filter or column list
is another: rows that it lets through now have not come; and one whose partition was not
sent for a while.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """What is compared.

    Attributes:
        filenodes: leaf OID -> file, a plain table being its own leaf.
        columns: column -> version of its definition (xmin of its pg_attribute row).
        numbers: column -> its attnum.
        actions: what the publications send of it.
        rules: fingerprint of the row filters and columns that act on it, the server's and
            ours; empty in a record of before there were any.
        sent: the leaves whose changes the server's publications send; likewise.
    """

    filenodes: Mapping[int, int]
    columns: Mapping[str, int]
    numbers: Mapping[str, int]
    actions: frozenset[str]
    rules: str = ""
    sent: frozenset[int] = frozenset()

    def to_text(self) -> str:
        """As the subscription's record keeps it."""
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
    def parse(cls, text: str) -> Shape | None:
        """Read what :meth:`to_text` wrote; None from a record that has none."""
        if not text:
            return None
        raw = json.loads(text)
        filenodes = {int(k): v for k, v in raw["filenodes"].items()}
        numbers, actions = raw.get("numbers", {}), frozenset(raw.get("actions", ()))
        sent = frozenset(raw.get("sent", ()))
        return cls(filenodes, raw["columns"], numbers, actions, raw.get("rules", ""), sent)


def is_moved(before: Shape, now: Shape) -> bool:
    """Whether a leaf that was there has another file."""
    both = before.filenodes.keys() & now.filenodes.keys()
    return any(before.filenodes[oid] != now.filenodes[oid] for oid in both)


def is_rewritten(before: Shape, now: Shape) -> bool:
    """Whether rows have other values that no message carried."""
    redefined = any(
        before.columns[name] != now.columns[name]
        for name in before.columns.keys() & now.columns.keys()
    )
    return redefined and is_moved(before, now)


def is_renamed(before: Shape, now: Shape) -> bool:
    """Whether a name means another column than it did, or a column has another name."""
    names = {number: name for name, number in before.numbers.items()}
    return any(
        before.numbers.get(name, number) != number or names.get(number, name) != name
        for name, number in now.numbers.items()
    )


def is_widened(before: Shape, now: Shape) -> bool:
    """Whether actions are sent that were not: what they did before has not come."""
    return bool(before.actions) and not now.actions <= before.actions


def is_ruled_otherwise(before: Shape, now: Shape) -> bool:
    """Whether other rows or columns are published than were."""
    return bool(before.rules) and before.rules != now.rules


def is_sent_again(before: Shape, now: Shape) -> bool:
    """Whether leaves are sent that were there and were not sent."""
    return bool(before.sent) and bool((now.sent - before.sent) & before.filenodes.keys())


def came(before: Shape, now: Shape) -> set[int]:
    """Leaves that were not there."""
    return set(now.filenodes.keys() - before.filenodes.keys())


def went(before: Shape, now: Shape) -> set[int]:
    """Leaves that are not there any more."""
    return set(before.filenodes.keys() - now.filenodes.keys())
