"""Finds the attribute numbers of the columns in a Relation message.

The message has names and types, in the order of the attribute numbers (pg_attribute.attnum). A name
proves little, because a column may have been renamed before the catalog was read. But numbers are
never reused, new columns get higher numbers, and all columns are sent. So the columns of a message
are an ordered subsequence of the catalog's numbers:

- a column that existed before the message and still exists cannot be skipped;
- neither can an existing column, if a column with a higher number already existed;
- a dropped column can be skipped. Of a dropped column, only the length and alignment of its type
  are known, not its name and type.

If only one assignment is possible, it is proved. Source: RemoveAttributeById() in heap.c,
logicalrep_write_attrs() in proto.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

FIRST_UNKNOWN_TYPE_OID = 10000
"""OIDs of types from here on differ between servers."""
_MOST = 64
"""How many assignments to list: with more than one, nothing is proved anyway."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute number in the catalog.

    Attributes:
        name: the column's name; empty: the column was dropped.
        type_oid: its type; 0 for a dropped column.
        storage: length and alignment of a dropped column's type; None: unknown.
        was_there: the column existed before the message.
        is_sent: the publications send the column; the server may also send some of the others.
    """

    name: str
    type_oid: int = 0
    storage: tuple[int, str] | None = None
    was_there: bool = False
    is_sent: bool = True

    def fits(self, name: str, type_oid: int) -> bool:
        """Whether a column of a message can have this number.

        Its type may have changed without a new relfilenode: then the values are stored in the same
        way. With a new relfilenode, a column that existed before the message is matched by name. A
        newer column is not matched: its table is copied anyway.
        """
        if not self.name:
            storage = STORAGE.get(type_oid)
            return storage is None or self.storage is None or storage == self.storage
        has_kept_name = self.was_there and self.name == name
        return has_kept_name or _are_stored_alike(self.type_oid, type_oid)


@lru_cache(maxsize=10_000)
def alignments(
    sent: tuple[tuple[str, int], ...], slots: tuple[Slot, ...]
) -> tuple[tuple[int, ...], ...]:
    """All possible assignments of catalog numbers to a message's columns, as indexes into
    ``slots``.

    Assignments that match more of the current names come first. Empty: the message belongs to
    another table, or to other publications.

    Args:
        sent: name and type OID of each column of the message.
        slots: the catalog's numbers, in order.
    """
    if tuple(slot.name for slot in slots) == tuple(name for name, _ in sent):
        return (tuple(range(len(slots))),)
    found = _found(sent, slots)

    def renamed(ways: tuple[int, ...]) -> int:
        return sum(slots[at].name != name for at, (name, _) in zip(ways, sent, strict=True))

    return tuple(sorted(found, key=lambda ways: (renamed(ways), ways))) or _by_name(sent, slots)


def _by_name(sent: Sequence[tuple[str, int]], slots: Sequence[Slot]) -> tuple[tuple[int, ...], ...]:
    """Match by name if existing columns are missing: a publication of a partition may list only
    some."""
    places = {slot.name: at for at, slot in enumerate(slots) if slot.name}
    named = tuple(places.get(name, -1) for name, _ in sent)
    is_ordered = all(at < behind for at, behind in pairwise(named))
    return (named,) if -1 not in named and is_ordered else ()


def _found(sent: Sequence[tuple[str, int]], slots: Sequence[Slot]) -> list[tuple[int, ...]]:
    """The assignments, those with equal names first; at most :data:`_MOST`.

    Visits the slots in order; each gets the next column or is skipped.
    """

    def may_take(at: int, column: int) -> bool:
        return column < len(sent) and slots[at].fits(*sent[column])

    def may_skip(at: int, column: int) -> bool:
        slot = slots[at]
        if not slot.name or not slot.is_sent:
            return True
        return not slot.was_there and column == len(sent)

    # Whether the slots from an index on can match the columns from an index on.
    can_end = [[False] * len(sent) + [True]]
    for at in reversed(range(len(slots))):
        after = can_end[0]
        can_end.insert(
            0,
            [
                (may_take(at, column) and after[column + 1])
                or (after[column] and may_skip(at, column))
                for column in range(len(sent) + 1)
            ],
        )
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while waiting and len(found) < _MOST:
        at, taken = waiting.pop()
        if not can_end[at][len(taken)]:
            continue
        if at == len(slots):
            found.append(taken)
            continue
        if may_skip(at, len(taken)):
            waiting.append((at + 1, taken))
        if may_take(at, len(taken)):
            waiting.append((at + 1, (*taken, at)))
    return found


def _are_stored_alike(one: int, other: int) -> bool:
    if one == other or max(one, other) >= FIRST_UNKNOWN_TYPE_OID:
        return True
    return any(one in kind and other in kind for kind in _STORED_ALIKE)


_STORED_ALIKE = (
    frozenset({25, 1042, 1043, 142}),  # text, char(n), varchar, xml
    frozenset({869, 650}),  # inet, cidr
    frozenset({1560, 1562}),  # bit, varbit
    frozenset({1114, 1184}),  # timestamp, timestamptz
    frozenset({23, 26, 24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191}),
)
"""Types between which ALTER TABLE may keep the file; the last ones are OID types."""

STORAGE = {
    **dict.fromkeys((16, 18), (1, "c")),  # boolean, "char"
    21: (2, "s"),
    **dict.fromkeys((*_STORED_ALIKE[-1], 28, 29, 700, 1082), (4, "i")),  # xid, cid, real, date
    829: (6, "i"),
    774: (8, "i"),
    **dict.fromkeys((20, 701, 790, 1083, 1114, 1184, 3220), (8, "d")),
    1266: (12, "d"),
    **dict.fromkeys((600, 1186), (16, "d")),  # point, interval
    2950: (16, "c"),  # uuid
    **dict.fromkeys((25, 1042, 1043, 142, 17, 114, 3802, 1700, 869, 650, 1560, 1562), (-1, "i")),
    **dict.fromkeys((1000, 1005, 1007, 1009, 1015, 1021, 1182, 1231, 2951, 3807), (-1, "i")),
    **dict.fromkeys((1016, 1022, 1115, 1185), (-1, "d")),  # arrays of wider elements
}
"""pg_type.typlen and typalign of most columns' types; any storage matches the others."""
