"""Sequences on the server's own publications of one table: what is sent, and what is not.

A publication that is named in the configuration is missing between two transactions on 18 only:
older servers cannot decode what was written meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.support.ddl.row import Moment, Publisher
from tests.support.sequences.sequence import Drawn, Step, ends_of_transactions, pick

_KINDS = (
    (14, "add_or_drop"), (10, "filter_"), (7, "list_"), (10, "operations"), (8, "rename"),
    (5, "set_same"), (6, "set_other"), (5, "drop_and_make"), (6, "via_root"), (3, "comment"),
    (4, "truncate"), (7, "second"),
)  # fmt: skip
_NEUTRAL = tuple(
    (weight, kind)
    for weight, kind in _KINDS
    if kind in ("rename", "set_same", "via_root", "comment", "truncate")
)
"""Those that no rule sends to a copy."""
_ALL = "insert, update, delete, truncate"
_SOME = ("insert", "insert, update", "insert, update, delete", "delete", "update, delete", _ALL)
_FILTERS = ("id > 5", "id % 2 = 0", "id < 108", "id > 0")
"""Of what is in the replica identity: others are refused with updates and deletes."""
_LISTS = ("(id, a)", "(id, b)", "(id, a, b)", "(id)")


class _Table:
    """What the generator knows of the table's publication.

    Attributes:
        has_table: the publication has the table.
        is_sent: by it or by the second one.
        neutral: the last step is one that no rule sends to a copy.
    """

    def __init__(self, dice: Random, version: int, *, is_partitioned: bool) -> None:
        self.dice = dice
        self.version = version
        self.is_partitioned = is_partitioned
        self.name = "{t}"
        self.has_table = True
        self.second_has_table = False
        self.operations_now = _ALL
        self.condition = ""
        self.columns = ""
        self.is_via_root = False
        self.neutral = False
        self.has_rows = True
        self.fresh = 100

    def alter(self, what: str) -> str:
        return f"ALTER PUBLICATION {self.name} {what}"

    def _table(self) -> str:
        return f"TABLE {{t}} {self.columns} {self.condition}".strip().replace("  ", " ")

    # The statements

    def add_or_drop(self) -> str:
        self.has_table = not self.has_table
        if not self.has_table:
            return self.alter("DROP TABLE {t}")
        self.condition, self.columns = "", ""
        return self.alter("ADD TABLE {t}")

    def filter_(self) -> str | None:
        if self.version < 15 or (self.is_partitioned and not self.is_via_root):
            return None
        self.condition = f"WHERE ({self.dice.choice(_FILTERS)})"
        if self.dice.random() < 0.35:
            self.condition = ""
        return self._set()

    def list_(self) -> str | None:
        if self.version < 15 or self.second_has_table or self.is_partitioned:
            return None
        self.columns = self.dice.choice((*_LISTS, ""))
        return self._set()

    def _set(self) -> str:
        self.has_table = True
        return self.alter(f"SET {self._table()}")

    def set_same(self) -> str:
        self.neutral = self.has_table
        return self._set()

    def set_other(self) -> str:
        self.has_table = False
        return self.alter("SET TABLE {t}_other")

    def operations(self) -> str:
        self.operations_now = self.dice.choice(_SOME) if self.operations_now == _ALL else _ALL
        return self.alter(f"SET (publish = '{self.operations_now}')")

    def rename(self) -> str:
        """There and back at once, or with what it does not send in between."""
        old, new = self.name, "{t}" if self.name != "{t}" else "{t}_new"
        if self.name == "{t}" and (self.version < 18 or self.dice.random() < 0.5):
            self.neutral = True
            there = self.alter("RENAME TO {t}_new")
            return f"{there}; ALTER PUBLICATION {{t}}_new RENAME TO {{t}}"
        self.name = new
        return f"ALTER PUBLICATION {old} RENAME TO {new}"

    def drop_and_make(self) -> str | None:
        if self.second_has_table and self.columns:
            return None
        between = ""
        if self.version >= 18 and self.has_rows and self.dice.random() < 0.4:
            between = f"; {self.change()}"
        self.has_table, self.operations_now, self.is_via_root = True, _ALL, False
        self.condition = self.columns = ""
        return (
            f"DROP PUBLICATION {self.name}{between}; CREATE PUBLICATION {self.name} FOR TABLE {{t}}"
        )

    def via_root(self) -> str | None:
        if self.version < 13 or (self.condition and self.is_partitioned):
            return None
        self.is_via_root, self.neutral = not self.is_via_root, True
        return self.alter(f"SET (publish_via_partition_root = {str(self.is_via_root).lower()})")

    def comment(self) -> str:
        self.neutral = True
        return f"COMMENT ON PUBLICATION {self.name} IS 'x'"

    def truncate(self) -> str | None:
        self.neutral = self.has_table and self.operations_now == _ALL
        return "TRUNCATE {t}" if self.has_rows else None

    def second(self) -> str | None:
        """Another publication gets the table, with or without a filter, or loses it."""
        if self.columns:
            return None
        self.second_has_table = not self.second_has_table
        if not self.second_has_table:
            return "ALTER PUBLICATION {t}_more DROP TABLE {t}"
        condition = ""
        if self.version >= 15 and not self.is_partitioned and self.dice.random() < 0.5:
            condition = f" WHERE ({self.dice.choice(_FILTERS)})"
        return f"ALTER PUBLICATION {{t}}_more ADD TABLE {{t}}{condition}"

    def finish(self) -> list[str]:
        """What makes the end one that can be judged: the table is sent, with all that is done."""
        texts = []
        if self.name != "{t}":
            texts.append(self.rename())
        if self.operations_now != _ALL:
            texts.append(self.operations())
        if not self.has_table:
            texts.append(self.add_or_drop())
        return texts

    # Changes between

    def change(self) -> str:
        self.fresh += 1
        row = self.dice.randint(1, 12)
        match self.dice.randrange(5):
            case 0 | 1:
                return f"INSERT INTO {{t}} (id, a) VALUES ({self.fresh}, {self.fresh % 7})"
            case 2:
                return f"UPDATE {{t}} SET b = 'u{self.fresh}', a = id WHERE id = {row}"
            case 3:
                return f"UPDATE {{t}} SET id = {self.fresh} WHERE id = {row}"
            case _:
                return f"DELETE FROM {{t}} WHERE id = {row}"

    def changes(self, most: int) -> str:
        return "; ".join(self.change() for _ in range(self.dice.randint(0, most)))


def draw(seed: int, number: int, moment: Moment, version: int) -> Drawn:
    """One sequence on publications."""
    dice = Random(f"publications {seed} {number} {moment.name} {version}")
    is_partitioned = version >= 13 and dice.random() < 0.3
    table = _Table(dice, version, is_partitioned=is_partitioned)
    table.has_rows = moment is not Moment.LOST
    kinds = _NEUTRAL if dice.random() < 0.3 else _KINDS
    before = table.changes(2)
    steps: list[tuple[str, bool]] = []
    for _ in range(dice.randint(2, 5)):
        if table.has_rows and steps and dice.random() < 0.5:
            steps.append((table.changes(2), True))
        steps.append(_step(table, kinds))
    if dice.random() < 0.9:
        steps += [(text, False) for text in table.finish()]
    after = table.changes(3) if dice.random() < 0.7 else ""
    steps = [(text, neutral) for text, neutral in steps if text]
    ends = ends_of_transactions(dice, len(steps), moment)
    return Drawn(
        f"u{seed}_{moment.name.lower()}_{number}",
        (_setup(is_partitioned=is_partitioned),),
        tuple(
            Step(text, end, not neutral) for (text, neutral), end in zip(steps, ends, strict=True)
        ),
        before,
        after,
        publisher=Publisher.SERVER,
        publications=("{t}", "{t}_more"),
    )


def _step(table: _Table, kinds: Sequence[tuple[float, str]]) -> tuple[str, bool]:
    while True:
        kind = pick(table.dice, kinds)
        table.neutral = False
        text: str | None = getattr(table, kind)()
        if text is not None:
            return text, table.neutral


def _setup(*, is_partitioned: bool) -> str:
    columns = "id int PRIMARY KEY, a int, b text"
    made = [f"CREATE TABLE {{t}} ({columns})"]
    if is_partitioned:
        made = [
            f"CREATE TABLE {{t}} ({columns}) PARTITION BY RANGE (id)",
            "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (7)",
            "CREATE TABLE {t}_high PARTITION OF {t} FOR VALUES FROM (7) TO (3000)",
        ]
    made += [
        "INSERT INTO {t} SELECT i, i, 'b' || i FROM generate_series(1, 12) i",
        "CREATE TABLE {t}_other (id int PRIMARY KEY)",
        "CREATE PUBLICATION {t} FOR TABLE {t}",
        "CREATE PUBLICATION {t}_more FOR TABLE {t}_other",
    ]
    return ";\n".join(made)
