"""Sequences on columns: what is added, filled, renamed, dropped and changed, with changes between.

A model of the table's columns keeps the statements valid. Most steps go on with the column of the
step before, because faults are where statements meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.support.ddl.row import Moment
from tests.support.sequences.sequence import APART, Drawn, Step, ends_of_transactions, pick

_TYPES = (
    (9, "int"), (5, "text"), (2, "varchar(10)"), (1, "bigint"), (1, "numeric(8,2)"), (2, "float8"),
)  # fmt: skip
_WIDER = {
    "varchar(10)": ("varchar(20)", "text"),
    "varchar(20)": ("text", "varchar"),
    "numeric(8,2)": ("numeric(10,2)",),
    "text": ("varchar",),
}
"""Types that need no other rows."""
_REWRITTEN = {
    "int": (("bigint", ""), ("text", ""), ("int", " USING {} * 2"), ("bigint", " USING -{}")),
    "bigint": (("numeric(20,2)", ""),),
    "text": (("int", " USING length({})"),),
    "float8": (("text", ""),),
    "numeric(8,2)": (("numeric(12,4)", ""),),
}
"""Types with which all rows are written again, and what has to be said of the old values."""
_FRESH = ("x", "y", "z", "w", "v", "u")
_KINDS = (
    (12, "add"), (8, "add_constant"), (4, "add_volatile"), (4, "add_generated"),
    (13, "fill_all"), (9, "fill_some"), (14, "rename"), (7, "swap"), (9, "drop"),
    (8, "add_under_old_name"), (5, "type_wider"), (5, "type_rewritten"), (4, "set_default"),
    (4, "drop_default"), (3, "drop_expression"), (4, "rename_key"), (1.5, "type_of_key"),
    (1.5, "move_key"), (3, "add_other_case"), (1.5, "other_identity"),
)  # fmt: skip
_NO_ROWS = frozenset({"fill_all", "fill_some", "move_key", "other_identity"})
_ROWS = 12
_BIG = "repeat(md5({}::text), 90)"
"""So much that it is stored apart, and not sent by an update of other columns."""


@dataclass
class _Column:
    name: str
    type: str
    is_key: bool = False
    is_not_null: bool = False
    has_default: bool = False
    made_of: _Column | None = None
    """A generated column's only other one."""

    @property
    def sql(self) -> str:
        return quoted(self.name)


@dataclass
class _Table:
    """What the generator knows of a table.

    Attributes:
        former: names that columns had.
        last: the column of the step before.
        is_full: the replica identity is.
        is_apart: catalog refreshes come between the transactions.
        at_target: the names of columns that the target has before the sequence.
        is_copied: a rule sends the last step to a copy.
    """

    dice: Random
    form: str
    version: int
    columns: list[_Column]
    former: list[str] = field(default_factory=list)
    last: _Column | None = None
    is_copied: bool = False
    fresh: int = 100
    salt: int = 0
    is_full: bool = False
    is_apart: bool = False
    at_target: frozenset[str] = frozenset()

    # What statements need

    @property
    def key(self) -> _Column:
        return next(column for column in self.columns if column.is_key)

    @property
    def collides(self) -> bool:
        """Whether two names differ by their case only."""
        return len({column.name.lower() for column in self.columns}) < len(self.columns)

    def column(self, allowed: Callable[[_Column], bool]) -> _Column | None:
        """One that may be changed; often the one of the step before."""
        found = [column for column in self.columns if allowed(column)]
        if self.last in found and self.dice.random() < 0.7:
            return self.last
        return self.dice.choice(found) if found else None

    def new_name(self, *, old: bool = False) -> str:
        """A name that is free; often one that was another column's."""
        taken = {column.name.lower() for column in self.columns}
        former = [name for name in self.former if name.lower() not in taken]
        if former and (old or self.dice.random() < 0.35):
            return self.dice.choice(former)
        fresh = [name for name in _FRESH if name not in taken]
        name = self.dice.choice(fresh) if fresh else f"n{len(self.columns)}"
        return name.upper() if self.dice.random() < 0.08 else name

    def value(self, type_: str) -> str:
        """An expression of the key, for a column of that type."""
        self.salt += 1
        key = self.key.sql
        match type_.partition("(")[0]:
            case "int" | "bigint":
                return f"{key} * 10 + {self.salt}"
            case "numeric" | "float8":
                return f"{key} + {self.salt} + 0.25"
            case _:
                return f"'s{self.salt}_' || {key}"

    def constant(self, type_: str) -> str:
        self.salt += 1
        number = type_.partition("(")[0] in ("int", "bigint", "numeric", "float8")
        return str(self.salt) if number else f"'d{self.salt}'"

    def alter(self, what: str) -> str:
        return f"ALTER TABLE {{t}} {what}"

    def is_used(self, column: _Column) -> bool:
        return any(other.made_of is column for other in self.columns)

    def is_plain(self, column: _Column) -> bool:
        return not column.is_key and column.made_of is None

    # The statements: each returns None where the table has nothing for it

    def add(self, name: str = "", options: str = "", type_: str = "") -> str:
        column = _Column(name or self.new_name(), type_ or pick(self.dice, _TYPES))
        self.is_copied |= self._may_be_at_target(column.name) and column.name in self.former
        self.columns.append(column)
        self.last = column
        return self.alter(f"ADD {column.sql} {column.type}{options}")

    def add_constant(self, name: str = "") -> str:
        type_ = pick(self.dice, _TYPES)
        is_not_null = self.dice.random() < 0.2
        options = f"{' NOT NULL' * is_not_null} DEFAULT {self.constant(type_)}"
        text = self.add(name, options, type_)
        self.columns[-1].has_default, self.columns[-1].is_not_null = True, is_not_null
        return text

    def add_volatile(self) -> str:
        self.is_copied = True
        text = self.add("", " DEFAULT random()", "float8")
        self.columns[-1].has_default = True
        return text

    def add_generated(self) -> str | None:
        base = self.column(lambda column: column.type == "int" and column.made_of is None)
        if base is None or self.is_full:  # which would have a column that is not sent
            return None
        kind = self.dice.choice(("STORED", "VIRTUAL") if self.version >= 18 else ("STORED",))
        text = self.add("", f" GENERATED ALWAYS AS ({base.sql} + 1) {kind}", "int")
        self.columns[-1].made_of = base
        self.columns[-1].has_default = kind == "VIRTUAL"  # has no expression to drop
        return text

    def fill_all(self) -> str | None:
        return self._fill("")

    def fill_some(self) -> str | None:
        some = f"{self.key.sql} % {self.dice.choice((2, 3, 5))} = 1"
        return self._fill(f" WHERE {self.dice.choice((some, f'{self.key.sql} = 4'))}")

    def _fill(self, where: str) -> str | None:
        column = self.column(self.is_plain)
        if column is None:
            return None
        self.last = column
        return f"UPDATE {{t}} SET {column.sql} = {self.value(column.type)}{where}"

    def rename(self, column: _Column | None = None) -> str | None:
        column = column or self.column(lambda column: not column.is_key)
        if column is None:
            return None
        return self._rename(column, self.new_name())

    def _rename(self, column: _Column, name: str) -> str:
        self.is_copied |= self._may_be_at_target(column.name)
        old, column.name, self.last = column.sql, name, column
        self.former.append(old.strip('"'))
        return self.alter(f"RENAME {old} TO {column.sql}")

    def _may_be_at_target(self, name: str) -> bool:
        """Whether the target may have a column of a name: a rename of it, and another column of its
        name, lead to a copy."""
        return self.is_apart or name.lower() in self.at_target

    def swap(self) -> str | None:
        one = self.column(lambda column: not column.is_key)
        others = [c for c in self.columns if c is not one and not c.is_key]
        if one is None or not others:
            return None
        same = [other for other in others if other.type == one.type]
        other = self.dice.choice(same if same and self.dice.random() < 0.6 else others)
        first, second = one.name, other.name
        texts = (
            self._rename(one, "old"), self._rename(other, first), self._rename(one, second)
        )  # fmt: skip
        self.former.remove("old")
        return "; ".join(texts)

    def drop(self, column: _Column | None = None) -> str | None:
        column = column or self.column(lambda c: not c.is_key and not self.is_used(c))
        if column is None:
            return None
        self.columns.remove(column)
        self.former.append(column.name)
        return self.alter(f"DROP {column.sql}")

    def add_under_old_name(self) -> str:
        taken = {column.name.lower() for column in self.columns}
        if any(name.lower() not in taken for name in self.former):
            return self._add_some(self.new_name(old=True))
        made = self.drop() if self.dice.random() < 0.5 else self.rename()
        again = self._add_some(self.new_name(old=True))
        return f"{made}; {again}" if made else again

    def _add_some(self, name: str) -> str:
        return self.add_constant(name) if self.dice.random() < 0.3 else self.add(name)

    def add_other_case(self) -> str | None:
        """A name that differs from another one's by its case only, now or from before."""
        names = [column.name for column in self.columns if not column.is_key]
        if self.former and self.dice.random() < 0.6:
            names = self.former
        taken = {column.name for column in self.columns}
        found = [name.swapcase() for name in names if name.swapcase() not in taken]
        return self._add_some(self.dice.choice(found)) if found else None

    def type_wider(self) -> str | None:
        column = self.column(lambda c: c.type in _WIDER and self._may_have_type(c))
        if column is None:
            return None
        column.type, self.last = self.dice.choice(_WIDER[column.type]), column
        return self.alter(f"ALTER {column.sql} TYPE {column.type}")

    def type_rewritten(self) -> str | None:
        column = self.column(lambda c: c.type in _REWRITTEN and self._may_have_type(c))
        if column is None:
            return None
        type_, using = self.dice.choice(_REWRITTEN[column.type])
        drops = f"ALTER {column.sql} DROP DEFAULT, " if column.has_default else ""
        column.type, column.has_default, self.last = type_, False, column
        self.is_copied = True
        return self.alter(f"{drops}ALTER {column.sql} TYPE {type_}{using.format(column.sql)}")

    def _may_have_type(self, column: _Column) -> bool:
        return self.is_plain(column) and not self.is_used(column)

    def set_default(self) -> str | None:
        column = self.column(self.is_plain)
        if column is None:
            return None
        column.has_default, self.last = True, column
        return self.alter(f"ALTER {column.sql} SET DEFAULT {self.constant(column.type)}")

    def drop_default(self) -> str | None:
        column = self.column(lambda c: self.is_plain(c) and c.has_default)
        if column is None:
            return None
        column.has_default, self.last = False, column
        return self.alter(f"ALTER {column.sql} DROP DEFAULT")

    def drop_expression(self) -> str | None:
        column = self.column(lambda c: c.made_of is not None and not c.has_default)
        if column is None or self.version < 13:
            return None
        column.made_of, self.last, self.is_copied = None, column, True
        return self.alter(f"ALTER {column.sql} DROP EXPRESSION")

    def rename_key(self) -> str:
        return self._rename(self.key, self.new_name())

    def type_of_key(self) -> str | None:
        if self.form != "plain" or self.is_used(self.key) or self.key.type != "int":
            return None
        self.key.type, self.is_copied = "bigint", True
        return self.alter(f"ALTER {self.key.sql} TYPE bigint")

    def move_key(self) -> str | None:
        """As a key is moved to a wider column by hand."""
        if self.form != "plain":
            return None
        old, name = self.key, self.key.name
        texts = [self.add(type_="bigint")]
        new = self.columns[-1]
        texts.append(f"UPDATE {{t}} SET {new.sql} = {old.sql}")
        texts.append(self.alter(f"DROP CONSTRAINT {{t}}_pkey, ADD PRIMARY KEY ({new.sql})"))
        texts.append(self._rename(old, self.new_name()))
        texts.append(self._rename(new, name))
        old.is_key, new.is_key = False, True
        old.is_not_null = new.is_not_null = True
        self.is_copied = True
        return "; ".join(texts)

    def other_identity(self) -> str | None:
        """The key of a row changes while the replica identity is the index of another column."""
        if self.form != "plain":
            return None
        texts = [self.add(type_="int")]
        other, key = self.columns[-1], self.key.sql
        self.fresh += 1
        texts += [
            f"UPDATE {{t}} SET {other.sql} = -{key}",
            self.alter(f"ALTER {other.sql} SET NOT NULL"),
            f"CREATE UNIQUE INDEX {{t}}_other ON {{t}} ({other.sql})",
            self.alter("REPLICA IDENTITY USING INDEX {t}_other"),
            f"UPDATE {{t}} SET {key} = {self.fresh + 5000} WHERE {key} = {self._row()}",
            self.alter(f"REPLICA IDENTITY {'FULL' if self.is_full else 'DEFAULT'}"),
            self.drop(other) or "",
        ]
        self.is_copied = True
        return "; ".join(texts)

    # Changes between

    def change(self) -> str:
        """An insert, an update of a column, a change of a key, or a delete."""
        key = self.key.sql
        self.fresh += 1
        fresh = self.fresh + 1000 * self.dice.randrange(2)
        match self.dice.randrange(6):
            case 0 | 1:
                return self._insert(fresh)
            case 2 | 3:
                column = self.dice.choice([c for c in self.columns if self.is_plain(c)] or [None])
                if column is None:
                    return self._insert(fresh)
                value = self.value(column.type)
                return f"UPDATE {{t}} SET {column.sql} = {value} WHERE {key} = {self._row()}"
            case 4:
                return f"UPDATE {{t}} SET {key} = {fresh} WHERE {key} = {self._row()}"
            case _:
                return f"DELETE FROM {{t}} WHERE {key} = {self._row()}"

    def _row(self) -> int:
        return self.dice.randint(1, _ROWS)

    def _insert(self, key: int) -> str:
        filled = [
            column
            for column in self.columns
            if self.is_plain(column)
            and ((column.is_not_null and not column.has_default) or self.dice.random() < 0.4)
        ]
        names = ", ".join(column.sql for column in (self.key, *filled))
        values = ", ".join((str(key), *(self.constant(column.type) for column in filled)))
        return f"INSERT INTO {{t}} ({names}) VALUES ({values})"

    def changes(self, most: int) -> str:
        return "; ".join(self.change() for _ in range(self.dice.randint(0, most)))


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return name if name == name.lower() else f'"{name}"'


def draw(seed: int, number: int, moment: Moment, version: int) -> Drawn:
    """One sequence on columns."""
    dice = Random(f"columns {seed} {number} {moment.name} {version}")
    form = pick(dice, ((6, "plain"), (3, "partitioned"), (1, "inherited")))
    return _draw(dice, form, f"c{seed}_{moment.name.lower()}_{number}", moment, version)


def draw_keyless(seed: int, number: int, moment: Moment, version: int) -> Drawn:
    """One sequence on columns of a table without a key, which sends whole old rows."""
    dice = Random(f"keyless {seed} {number} {moment.name} {version}")
    return _draw(dice, "keyless", f"k{seed}_{moment.name.lower()}_{number}", moment, version)


def _draw(dice: Random, form: str, name: str, moment: Moment, version: int) -> Drawn:
    table, setup = _make(dice, form, version)
    table.is_apart = moment in APART
    table.at_target = frozenset(column.name for column in table.columns)
    has_rows = moment is not Moment.LOST
    before = table.changes(2)
    steps: list[tuple[str, bool]] = []
    for _ in range(dice.randint(2, 6)):
        if has_rows and steps and dice.random() < 0.35:
            steps.append((table.changes(2), False))
        steps.append(_step(table, has_rows=has_rows))
    after = table.changes(3) if dice.random() < 0.7 else ""
    steps = [(text, is_copied) for text, is_copied in steps if text]
    ends = ends_of_transactions(dice, len(steps), moment)
    return Drawn(
        name,
        setup,
        tuple(
            Step(text, end, is_copied)
            for (text, is_copied), end in zip(steps, ends, strict=True)
        ),
        before,
        after,
        ("{t}", "{t}_child") if form == "inherited" else ("{t}",),
    )  # fmt: skip


def _step(table: _Table, *, has_rows: bool) -> tuple[str, bool]:
    """A statement, and whether a rule sends it to a copy."""
    while True:
        kind = pick(table.dice, _KINDS)
        if table.collides and table.dice.random() < 0.7:
            kind = table.dice.choice(("rename", "drop"))
        if kind in _NO_ROWS and not has_rows:
            continue
        table.is_copied = False
        text = getattr(table, kind)()
        if text is not None:
            # A table with two names that are one to a lake is parked, and copied after that.
            return text, table.is_copied or table.collides


def _make(dice: Random, form: str, version: int) -> tuple[_Table, tuple[str, ...]]:
    """A table with rows, and the statements that make it."""
    type_ = dice.choice(("varchar(10)", "numeric(8,2)", "int"))
    columns = [
        _Column("id", "int", is_key=True, is_not_null=True),
        _Column("a", "int"),
        _Column("b", "text"),
        _Column("c", type_),
    ]
    table = _Table(dice, form, version, columns)
    filled = f"SELECT i, i, 'b' || i, {table.constant(type_)} FROM generate_series"
    names = ["{t}"]
    made = [f"CREATE TABLE {{t}} (id int PRIMARY KEY, a int, b text, c {type_})"]
    if form == "keyless":
        made[0] = made[0].replace("id int PRIMARY KEY", "id int")
        made.append("ALTER TABLE {t} REPLICA IDENTITY FULL")
        made.append(f"INSERT INTO {{t}} (id, a, b, c) {filled}(1, 4) i")  # equal rows
        columns[0].is_not_null, table.is_full = False, True
    elif form == "inherited":
        made += [
            "CREATE TABLE {t}_child (extra int, PRIMARY KEY (id)) INHERITS ({t})",
            "INSERT INTO {t}_child (id, a) SELECT i, i FROM generate_series(51, 54) i",
        ]
    elif form == "partitioned":
        names += ["{t}_low", "{t}_high"]
        made[0] += " PARTITION BY RANGE (id)"
        made.append("CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (1000)")
        bound = "FOR VALUES FROM (1000) TO (3000)"
        if dice.random() < 0.5:
            made += [  # with numbers of its own
                f"CREATE TABLE {{t}}_high (gone int, c {type_}, b text, a int, id int PRIMARY KEY)",
                "ALTER TABLE {t}_high DROP gone",
                f"ALTER TABLE {{t}} ATTACH PARTITION {{t}}_high {bound}",
            ]
        else:
            made.append(f"CREATE TABLE {{t}}_high PARTITION OF {{t}} {bound}")
        made.append(f"INSERT INTO {{t}} (id, a, b, c) {filled}(1901, 1904) i")
    made.append(f"INSERT INTO {{t}} (id, a, b, c) {filled}(1, {_ROWS}) i")
    more = []
    if dice.random() < 0.25:
        kind = dice.choice(("int", "text"))
        more.append(f"ALTER TABLE {{t}} ADD gone {kind};\nALTER TABLE {{t}} DROP gone")
    if dice.random() < 0.2:
        more.append("ALTER TABLE {t} ADD m int DEFAULT 5")
        columns.append(_Column("m", "int", has_default=True))
    if dice.random() < 0.2:
        more.append(
            "ALTER TABLE {t} ADD big text;\nALTER TABLE {t} ALTER big SET STORAGE EXTERNAL;\n"
            f"UPDATE {{t}} SET big = {_BIG.format('id')} WHERE id % 3 = 1"
        )
        columns.append(_Column("big", "text"))
    if form != "keyless" and dice.random() < 0.1:
        table.is_full = True
        more.append(";\n".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names))
    return table, (";\n".join(made), *more)
