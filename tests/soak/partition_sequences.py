"""Sequences on partitions: what is attached, detached, made, dropped, emptied and renamed.

A partition has a slot: the ids from a thousand times its number on. A partition of a mid level is
below it, and goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.support.ddl.row import DURING_COPIES, FIRST_COPIES, Moment, Publisher
from tests.support.sequences.sequence import Drawn, Step, ends_of_transactions, pick

_KINDS = (
    (12, "create"), (3, "create_mid"), (12, "attach"), (5, "attach_other_numbers"),
    (12, "attach_again"), (14, "detach"), (9, "drop"), (9, "truncate"), (3, "truncate_root"),
    (5, "rename"), (3, "swap_names"), (6, "exchange"), (6, "replace"),
    (4, "make_default"), (6, "change_detached"), (6, "move_rows"),
)  # fmt: skip
_WITH_ROWS = frozenset(
    {"attach", "attach_other_numbers", "change_detached", "move_rows", "exchange", "replace",
     "truncate", "truncate_root"}
)  # fmt: skip
_SLOTS = range(7)
_DEFAULT_SLOTS = (8, 9)
"""Only the default partition has rows of these."""
_COLUMNS = "id int PRIMARY KEY, a int, b text"
_OTHER_COLUMNS = "gone int, b text, id int PRIMARY KEY, a int"


@dataclass(eq=False)
class _Partition:
    """A table that is a partition, or was one.

    Attributes:
        slots: of its bound; none: it is the default.
        parent: the mid level that it is below; None: the root.
        is_new: it came in this sequence.
    """

    name: str
    slots: tuple[int, ...]
    parent: _Partition | None = None
    is_mid: bool = False
    is_attached: bool = True
    is_new: bool = False

    @property
    def bound(self) -> str:
        if not self.slots:
            return "DEFAULT"
        return f"FOR VALUES FROM ({self.slots[0]}000) TO ({self.slots[-1] + 1}000)"

    @property
    def above(self) -> str:
        return self.parent.name if self.parent else "{t}"

    @property
    def is_sent(self) -> bool:
        """Whether its rows are the root's."""
        return self.is_attached and (self.parent is None or self.parent.is_sent)


class _Table:
    """What the generator knows of the tables.

    Args:
        keeps_new: a partition that came stays: of one that is published through its root and goes
            before the next look, nothing tells (ADR 0038).
    """

    def __init__(self, dice: Random, *, keeps_new: bool) -> None:
        self.dice = dice
        self.keeps_new = keeps_new
        self.partitions: list[_Partition] = []
        self.number = 0
        self.fresh = 100

    def new(self, slots: tuple[int, ...], parent: _Partition | None = None) -> _Partition:
        self.number += 1
        made = _Partition(f"{{t}}_p{self.number}", slots, parent, is_new=True)
        self.partitions.append(made)
        return made

    def below(self, parent: _Partition | None) -> list[_Partition]:
        return [p for p in self.partitions if p.parent is parent and p.is_attached]

    def free(self) -> list[tuple[int, _Partition | None]]:
        """Slots without a partition, and what one would be below."""
        mids = [p for p in self.partitions if p.is_mid and p.is_sent]
        found: list[tuple[int, _Partition | None]] = []
        for parent in (None, *mids):
            taken = {slot for p in self.below(parent) for slot in p.slots}
            allowed = _SLOTS if parent is None else parent.slots
            found += [(slot, parent) for slot in allowed if slot not in taken]
        return found

    def leaves(self) -> list[_Partition]:
        return [p for p in self.partitions if p.is_sent and not p.is_mid]

    def removable(self) -> list[_Partition]:
        return [
            p for p in self.partitions if p.is_sent and not (self.keeps_new and self._is_new(p))
        ]

    def _may_go(self, partition: _Partition) -> bool:
        """Whether a leaf stays: a root without any is not published by its leaves."""
        going = (partition, *self.below(partition))
        return any(leaf not in going for leaf in self.leaves())

    def _is_new(self, partition: _Partition) -> bool:
        return partition.is_new or any(self._is_new(p) for p in self.below(partition))

    def slots(self) -> list[int]:
        """Those that take rows."""
        found = [slot for leaf in self.leaves() for slot in leaf.slots]
        has_default = any(not p.slots and p.parent is None for p in self.leaves())
        return [*found, *(_DEFAULT_SLOTS if has_default else ())]

    def advance(self) -> None:
        """The next ids: never those of first rows, which end in 00."""
        self.fresh += 10
        if not 1 <= self.fresh % 100 <= 90:
            self.fresh = (self.fresh + 99) // 100 * 100 + 1

    def rows(self, table: str, slot: int) -> str:
        self.advance()
        first = slot * 1000 + self.fresh
        return (
            f"INSERT INTO {table} (id, a, b) SELECT i, {self.fresh}, 'n{self.fresh}'"
            f" FROM generate_series({first}, {first + self.dice.randint(0, 4)}) i"
        )

    # The statements

    def create(self) -> str | None:
        found = self.free()
        if not found:
            return None
        slot, parent = self.dice.choice(found)
        made = self.new((slot,), parent)
        text = f"CREATE TABLE {made.name} PARTITION OF {made.above} {made.bound}"
        return f"{text}; {self.rows('{t}', slot)}" if self._fills else text

    def create_mid(self) -> str | None:
        found = [slot for slot, parent in self.free() if parent is None]
        if not found:
            return None
        mid = self.new((self.dice.choice(found),))
        mid.is_mid = True
        leaf = self.new(mid.slots, mid)
        text = (
            f"CREATE TABLE {mid.name} PARTITION OF {{t}} {mid.bound} PARTITION BY RANGE (id); "
            f"CREATE TABLE {leaf.name} PARTITION OF {mid.name} {leaf.bound}"
        )
        return f"{text}; {self.rows('{t}', mid.slots[0])}" if self._fills else text

    has_rows = True

    @property
    def _fills(self) -> bool:
        return self.has_rows and self.dice.random() < 0.6

    def attach(self, columns: str = _COLUMNS) -> str | None:
        found = self.free()
        if not found:
            return None
        slot, parent = self.dice.choice(found)
        made = self.new((slot,), parent)
        texts = [f"CREATE TABLE {made.name} ({columns})", self.rows(made.name, slot)]
        if columns == _OTHER_COLUMNS:
            texts.append(f"ALTER TABLE {made.name} DROP gone")
        return "; ".join((*texts, self._attach(made)))

    def attach_other_numbers(self) -> str | None:
        return self.attach(_OTHER_COLUMNS)

    def _attach(self, partition: _Partition) -> str:
        partition.is_attached = True
        return f"ALTER TABLE {partition.above} ATTACH PARTITION {partition.name} {partition.bound}"

    def attach_again(self) -> str | None:
        found = [p for p in self.partitions if not p.is_attached and self._fits(p)]
        if not found:
            return None
        chosen = self.dice.choice(found)
        chosen.is_new = True
        return self._attach(chosen)

    def _fits(self, partition: _Partition) -> bool:
        if partition.parent is not None and not partition.parent.is_sent:
            return False
        if not partition.slots:
            return all(p.slots for p in self.below(partition.parent))
        free = {slot for slot, parent in self.free() if parent is partition.parent}
        return free.issuperset(partition.slots)

    def detach(self) -> str | None:
        found = [p for p in self.removable() if self._may_go(p)]
        if not found:
            return None
        chosen = self.dice.choice(found)
        chosen.is_attached = False
        return f"ALTER TABLE {chosen.above} DETACH PARTITION {chosen.name}"

    def drop(self) -> str | None:
        found = [p for p in self.removable() if self._may_go(p)]
        found += [p for p in self.partitions if not p.is_attached]
        if not found:
            return None
        chosen = self.dice.choice(found)
        self._forget(chosen)
        return f"DROP TABLE {chosen.name}"

    def _forget(self, partition: _Partition) -> None:
        for below in self.below(partition):
            self._forget(below)
        # What was detached from it can come back below the root.
        for other in self.partitions:
            if other.parent is partition:
                other.parent = None
        self.partitions.remove(partition)

    def truncate(self) -> str | None:
        found = self.removable()
        return f"TRUNCATE {self.dice.choice(found).name}" if found else None

    def truncate_root(self) -> str | None:
        return None if self.keeps_new and any(p.is_new for p in self.leaves()) else "TRUNCATE {t}"

    def rename(self) -> str | None:
        found = [p for p in self.partitions if p.is_sent]
        return self._rename(self.dice.choice(found)) if found else None

    def _rename(self, partition: _Partition, name: str = "") -> str:
        self.number += 1
        old, partition.name = partition.name, name or f"{{t}}_r{self.number}"
        return f"ALTER TABLE {old} RENAME TO {partition.name}"

    def swap_names(self) -> str | None:
        found = self.leaves()
        if len(found) < 2:
            return None
        one, other = self.dice.sample(found, 2)
        first, second = one.name, other.name
        return "; ".join(
            (self._rename(one), self._rename(other, first), self._rename(one, second))
        )  # fmt: skip

    def exchange(self) -> str | None:
        """Another table takes a partition's place, which stays apart or goes."""
        found = [p for p in self.removable() if p.slots and not p.is_mid]
        if not found:
            return None
        old = self.dice.choice(found)
        old.is_attached = False
        made = self.new(old.slots, old.parent)
        texts = [
            f"CREATE TABLE {made.name} ({_COLUMNS})",
            self.rows(made.name, old.slots[0]),
            f"ALTER TABLE {old.above} DETACH PARTITION {old.name}",
            self._attach(made),
        ]
        if self.dice.random() < 0.4:
            self._forget(old)
            texts.append(f"DROP TABLE {old.name}")
        return "; ".join(texts)

    def replace(self) -> str | None:
        """A partition makes room for an empty one, which gets rows with keys of its first ones."""
        found = [p for p in self.removable() if p.slots and not p.is_mid]
        if not found:
            return None
        old = self.dice.choice(found)
        self._forget(old)
        made = self.new(old.slots, old.parent)
        low, value = old.slots[0] * 10, self.dice.choice(("i", "7"))
        return (
            f"DROP TABLE {old.name}; CREATE TABLE {made.name} PARTITION OF {made.above} "
            f"{made.bound}; INSERT INTO {{t}} (id, a, b) SELECT i * 100, {value}, 'b' || i"
            f" FROM generate_series({low}, {low + self.dice.randint(0, 9)}) i WHERE i > 0"
        )

    def make_default(self) -> str | None:
        if any(not p.slots for p in self.partitions):
            return None
        made = self.new(())
        text = f"CREATE TABLE {made.name} PARTITION OF {{t}} DEFAULT"
        return f"{text}; {self.rows('{t}', _DEFAULT_SLOTS[0])}" if self._fills else text

    def change_detached(self) -> str | None:
        found = [p for p in self.partitions if not p.is_attached and not p.is_mid]
        if not found:
            return None
        chosen = self.dice.choice(found)
        slot = chosen.slots[0] if chosen.slots else _DEFAULT_SLOTS[1]
        return self.dice.choice(
            (
                f"UPDATE {chosen.name} SET b = 'apart'",
                f"DELETE FROM {chosen.name} WHERE id % 2 = 0",
                self.rows(chosen.name, slot),
            )
        )

    def move_rows(self) -> str | None:
        slots = self.slots()
        if len(slots) < 2:
            return None
        one, other = self.dice.sample(slots, 2)
        self.advance()
        return (
            f"UPDATE {{t}} SET id = {other * 1000 + self.fresh}"
            f" WHERE id = (SELECT min(id) FROM {{t}} WHERE id / 1000 = {one})"
        )

    # Changes between

    def change(self) -> str:
        slots = self.slots()
        some = self.dice.choice(slots or [0])
        match self.dice.randrange(3):
            case 0 if slots:
                return self.rows("{t}", some)
            case 1:
                self.fresh += 1
                return (
                    f"UPDATE {{t}} SET b = 'u{self.fresh}' WHERE id % {self.dice.randint(2, 5)} = 1"
                )
            case _:
                return (
                    f"DELETE FROM {{t}} WHERE id = (SELECT min(id) FROM {{t}} WHERE id > {some}000)"
                )

    def changes(self, most: int) -> str:
        return "; ".join(self.change() for _ in range(self.dice.randint(0, most)))


def draw(seed: int, number: int, moment: Moment, version: int) -> Drawn:
    """One sequence on partitions."""
    dice = Random(f"partitions {seed} {number} {moment.name} {version}")
    may_have_root = version >= 13 and moment not in FIRST_COPIES
    via_root = may_have_root and dice.random() < 0.35
    table = _Table(dice, keeps_new=via_root)
    table.has_rows = moment is not Moment.LOST
    setup = _make(table, dice)
    if via_root:
        setup[0] += ";\nCREATE PUBLICATION {t} FOR TABLE {t} WITH (publish_via_partition_root)"
    before = table.changes(2)
    steps: list[str] = []
    for _ in range(dice.randint(2, 6)):
        if table.has_rows and steps and dice.random() < 0.35:
            steps.append(table.changes(2))
        steps.append(_step(table))
    after = table.changes(3) if dice.random() < 0.7 else ""
    steps = [text for text in steps if text]
    ends = ends_of_transactions(dice, len(steps), moment)
    apart = [
        p.name for p in table.partitions if not p.is_attached and (table.below(p) or not p.is_mid)
    ]
    return Drawn(
        f"p{seed}_{moment.name.lower()}_{number}",
        tuple(setup),
        tuple(Step(text, end) for text, end in zip(steps, ends, strict=True)),
        before,
        after,
        ("{t}",) if via_root else ("{t}", *_published(apart, moment)),
        ("{t}",),
        Publisher.SERVER if via_root else Publisher.PGSLUICE,
    )  # fmt: skip


def _published(apart: list[str], moment: Moment) -> list[str]:
    """Tables that are no partitions in the end, and targets of their own."""
    return [] if moment in DURING_COPIES | FIRST_COPIES else apart


def _step(table: _Table) -> str:
    while True:
        kind = pick(table.dice, _KINDS)
        if kind in _WITH_ROWS and not table.has_rows:
            continue
        text: str | None = getattr(table, kind)()
        if text is not None:
            return text


def _make(table: _Table, dice: Random) -> list[str]:
    """Two levels with rows; some have a default, and a table that is no partition yet."""
    low = table.new((0,))
    mid = table.new((1, 2))
    mid.is_mid = True
    first, second = table.new((1,), mid), table.new((2,), mid)
    made = [
        f"CREATE TABLE {{t}} ({_COLUMNS}) PARTITION BY RANGE (id)",
        f"CREATE TABLE {low.name} PARTITION OF {{t}} {low.bound}",
        f"CREATE TABLE {mid.name} PARTITION OF {{t}} {mid.bound} PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE {leaf.name} PARTITION OF {mid.name} {leaf.bound}"
            for leaf in (first, second)
        ),
        "INSERT INTO {t} SELECT i * 100, i, 'b' || i FROM generate_series(1, 29) i",
    ]
    setup = [";\n".join(made)]
    if dice.random() < 0.3:
        rest = table.new(())
        setup.append(f"CREATE TABLE {rest.name} PARTITION OF {{t}} DEFAULT; {table.rows('{t}', 8)}")
    if dice.random() < 0.4:
        late = table.new((dice.choice((3, 4, 5)),))
        late.is_attached = False
        columns = dice.choice((_COLUMNS, _OTHER_COLUMNS))
        texts = [f"CREATE TABLE {late.name} ({columns})", table.rows(late.name, late.slots[0])]
        if columns == _OTHER_COLUMNS:
            texts.append(f"ALTER TABLE {late.name} DROP gone")
        setup.append("; ".join(texts))
    for partition in table.partitions:
        partition.is_new = False
    return setup
