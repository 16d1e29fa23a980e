"""Random tables, publications and changes: what the differential test of publishing runs.

Four kinds of table, each with values of its types' extremes and NULLs, and with most values
stored out of line (TOAST), so that updates leave them out:

* ``every``: every type, REPLICA IDENTITY FULL;
* ``keyed``: an index as replica identity, filters on its columns;
* ``plain``: a primary key, a stored generated column;
* ``parted``: partitions whose columns have another order, published by root or by leaf.

Publications have random filters, actions, column lists; none that would stop the changes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from tests.publication.native import Outcome, Scene, Verdict, try_publications
from tests.support.filter_cases import CaseMaker, FilterCatalog, literal
from tests.support.filter_values import COLUMN_TYPES, TYPES, random_text, sql_type

from pgsluice.replication import connect_sql

KEY_TYPES = ("int4", "text", "numeric", "float8", "date", "timestamptz", "bool", "bytea", "uuid")
ROWS = 12
PUBLISH = ("insert", "update", "delete", "truncate")
EVERYTHING = tuple(
    f"CREATE PUBLICATION everything{name} FOR ALL TABLES"
    f" WITH (publish_generated_columns = stored, publish_via_partition_root = {is_on})"
    for name, is_on in (("", "off"), ("_root", "on"))
)


@dataclass(frozen=True)
class Table:
    """A table to change.

    Attributes:
        columns: types by name, without ``id`` and generated ones.
        key: columns that are never NULL.
        filterable: columns that old tuples carry, with ``id`` where that is one.
    """

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    filterable: dict[str, str]
    is_full: bool = False


class SceneMaker:
    """Makes scenes in empty databases.

    Args:
        connection: to the database, in autocommit mode, with the settings of a stream.
        seed: the same gives the same.
        filters: how many publications to try, in all.
        tame: only values that the columns' Arrow types hold.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], seed: int, filters: int, tame: bool = False
    ) -> None:
        self.connection = connection
        self.random = Random(seed)
        self.seed = seed
        self.filters = filters
        self.tame = tame

    def make(self) -> tuple[Scene, list[tuple[list[str], str]]]:
        """The scene, and what to compare: publications, and what stands for everything.

        Where the server publishes everything through the root, only publications that do too
        can give what the server gives."""
        self.connection.execute("SET search_path = public")
        tables = [self._every(), self._keyed(), self._plain(), self._parted()]
        functions = FilterCatalog.read(self.connection)
        statements = [
            self._publication(number, tables, functions) for number in range(self.filters)
        ]
        taken = try_publications(self.connection, [*EVERYTHING, *statements])
        self.connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for statement in self._changes(tables):
            try:
                self.connection.execute(statement.encode())
            except (psycopg.errors.IntegrityError, psycopg.errors.ProgramLimitExceeded):
                continue  # a key that is there, or too long: another value comes
        scene = Scene(self.connection, taken)
        made = {one.split()[2]: one for one in taken if not one.startswith(EVERYTHING)}
        several = (
            self.random.sample(list(made), self.random.choice((2, 2, 3)))
            for _ in range(len(made) // 4)
        )
        sets = [*([name] for name in made), *several]
        compared = [(names, "everything") for names in sets]
        compared += [
            (names, "everything_root")
            for names in sets
            if all(_is_as_by_root(made[name]) for name in names)
        ]
        return scene, compared

    # Tables

    def _every(self) -> Table:
        columns = {
            f"{prefix}_{one.lstrip('_') + ('_array' if one[0] == '_' else '')}": one
            for one in TYPES
            for prefix in "ab"
        }
        self._create("every", columns, "id int PRIMARY KEY")
        self.connection.execute("ALTER TABLE every REPLICA IDENTITY FULL")
        return Table("every", columns, (), {"id": "int4", **columns}, is_full=True)

    def _keyed(self) -> Table:
        key = {f"k_{one}": one for one in KEY_TYPES}
        others = {f"a_{one}": one for one in ("text", "jsonb", "int4", "numeric")}
        self._create("keyed", key | others, "id int", not_null=tuple(key))
        self.connection.execute(f"CREATE UNIQUE INDEX keyed_key ON keyed ({', '.join(key)})")
        self.connection.execute("ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_key")
        return Table("keyed", key | others, tuple(key), key)

    def _plain(self) -> Table:
        columns = {"k_text": "text", "a_text": "text", "a_int4": "int4", "a_interval": "interval"}
        more = "id int, twice int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id, k_text)"
        self._create("plain", columns, more, not_null=("k_text",))
        return Table("plain", columns, ("id", "k_text"), {"id": "int4", "k_text": "text"})

    def _parted(self) -> Table:
        columns = {"a_text": "text", "a_int4": "int4", "a_numeric": "numeric", "a_date": "date"}
        is_full = self.random.random() < 0.5
        self._create("parted", columns, "id int, PRIMARY KEY (id)", after="PARTITION BY RANGE (id)")
        for number, ends in enumerate(("FROM (0) TO (5)", "FROM (5) TO (9)", "DEFAULT")):
            leaf = f"leaf{number}"
            order = list(columns.items())
            self.random.shuffle(order)
            self._create(leaf, dict(order), "dropped int, id int NOT NULL")
            self.connection.execute(f"ALTER TABLE {leaf} DROP dropped")
            bounds = ends if ends == "DEFAULT" else f"FOR VALUES {ends}"
            self.connection.execute(f"ALTER TABLE parted ATTACH PARTITION {leaf} {bounds}")
        if is_full:
            for name in ("parted", "leaf0", "leaf1", "leaf2"):
                self.connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        whole = {"id": "int4"}
        return Table("parted", columns, ("id",), whole | columns if is_full else whole, is_full)

    def _create(
        self,
        name: str,
        columns: dict[str, str],
        more: str,
        *,
        not_null: Sequence[str] = (),
        after: str = "",
    ) -> None:
        defined = [
            f"{column} {COLUMN_TYPES.get(one, sql_type(one))}"
            + (" NOT NULL" if column in not_null else "")
            for column, one in columns.items()
        ]
        self.connection.execute(f"CREATE TABLE {name} ({', '.join([more, *defined])}) {after}")
        if after:
            return
        self.connection.execute(f"ALTER TABLE {name} SET (toast_tuple_target = 128)")
        external = self.connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND attstorage IN ('x', 'm') AND NOT attisdropped",
            [name],
        ).fetchall()
        if external:
            parts = ", ".join(f"ALTER {column} SET STORAGE EXTERNAL" for (column,) in external)
            self.connection.execute(f"ALTER TABLE {name} {parts}")

    # Publications

    def _publication(self, number: int, tables: Sequence[Table], functions: FilterCatalog) -> str:
        random = self.random
        table = random.choices(tables, (6, 4, 2, 4))[0]
        publish = PUBLISH
        if random.random() < 0.35:
            publish = tuple(random.sample(PUBLISH, random.randint(1, 3)))
        is_free = table.is_full or not {"update", "delete"} & set(publish)
        columns = {"id": "int4", **table.columns} if is_free else table.filterable
        maker = CaseMaker(functions, columns, random.randrange(2**30))

        def where() -> str:
            if random.random() < 0.08:
                return ""
            if random.random() < 0.4:
                return f" WHERE ({self._simple(columns)})"
            return f" WHERE ({maker.boolean(random.choice((1, 2, 3))).sql})"

        options = [f"publish = '{', '.join(publish)}'"]
        objects = self._objects(table, where, options)
        if table.name in ("keyed", "plain") and random.random() < 0.3:
            rest = ["id", *(one for one in table.columns if one not in table.key)]
            listed = [*table.key, *random.sample(rest, random.randint(0, len(rest)))]
            named = ", ".join(dict.fromkeys(listed))
            objects = objects.replace(table.name, f"{table.name} ({named})", 1)
        elif table.name == "plain" and random.random() < 0.5:
            options.append("publish_generated_columns = stored")
        return f"CREATE PUBLICATION f{number} FOR TABLE {objects} WITH ({', '.join(options)})"

    def _objects(self, table: Table, where: Callable[[], str], options: list[str]) -> str:
        if table.name != "parted":
            return table.name + where()
        random = self.random
        leaves = random.sample(("leaf0", "leaf1", "leaf2"), random.randint(0, 2))
        named = [f"{leaf}{where()}" for leaf in leaves]
        if random.random() < 0.5:
            options.append("publish_via_partition_root")
            return ", ".join([f"parted{where()}", *named])
        return ", ".join(["parted", *named] if random.random() < 0.4 or not named else named)

    def _simple(self, columns: dict[str, str]) -> str:
        """What people write."""
        random = self.random
        column = random.choice(list(columns))
        name = columns[column]
        if random.random() < 0.2:
            return f"{column} IS {random.choice(('', 'NOT '))}NULL"
        value = f"{literal(random_text(name, random))}::{sql_type(name)}"
        return f"{column} {random.choice(('=', '<', '>=', '<>'))} {value}"

    # Changes

    def _changes(self, tables: Sequence[Table]) -> Iterator[str]:
        random = self.random
        for number in range(ROWS):
            for table in tables:
                yield self._insert(table, number)
        for _ in range(ROWS * 2):
            for table in tables:
                yield self._update(table)
        for table in tables:
            for _ in range(3):
                yield f"DELETE FROM {table.name} WHERE id = {random.randrange(ROWS)}"
            yield self._update(table)
        yield "DELETE FROM leaf2"
        yield "TRUNCATE leaf1"
        for table in tables:
            yield self._insert(table, ROWS)
        yield "TRUNCATE every, keyed, parted"

    def _insert(self, table: Table, number: int) -> str:
        values = {one: self._value(table, one) for one in table.columns}
        names, given = ", ".join(values), ", ".join(values.values())
        return f"INSERT INTO {table.name} (id, {names}) VALUES ({number}, {given})"

    def _update(self, table: Table) -> str:
        random = self.random
        at = random.randrange(ROWS)
        if random.random() < 0.1:
            return f"UPDATE {table.name} SET id = id WHERE id = {at}"
        if random.random() < 0.15:
            return f"UPDATE {table.name} SET id = {random.randrange(ROWS * 2)} WHERE id = {at}"
        if random.random() < 0.2:
            # Another value on one side of the filters, or the other, for some rows at once.
            at = random.randrange(3)
        changed = random.sample(list(table.columns), random.randint(1, min(4, len(table.columns))))
        sets = ", ".join(f"{one} = {self._value(table, one)}" for one in changed)
        return f"UPDATE {table.name} SET {sets} WHERE id = {at}"

    def _value(self, table: Table, column: str) -> str:
        random, name = self.random, table.columns[column]
        if column not in table.key and random.random() < 0.15:
            return "NULL"
        text = random_text(name, random, self.tame)
        if name in ("text", "jsonb", "bytea") and random.random() < 0.3:
            text = _longer(name, text, 60 if column in table.key else 700)
        return f"{literal(text)}::{COLUMN_TYPES.get(name, sql_type(name))}"


def _is_as_by_root(statement: str) -> bool:
    return "_partition_root" in statement or not re.search("FOR TABLE (leaf|parted)", statement)


def _longer(name: str, text: str, times: int) -> str:
    """So long that it is stored out of line: in a row of over 2 kB all such values are."""
    match name:
        case "text":
            return (text or "long") * times
        case "bytea":
            return "\\x" + "abcd" * times
    return json.dumps({"a": "long" * times, "n": len(text)})


@dataclass
class Compared:
    """Scenes that were compared.

    Attributes:
        outcomes: of each set of publications.
        turned: what became of UPDATEs.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    turned: Counter[str] = field(default_factory=Counter)

    def add(self, dsn: str, seed: int, filters: int, tame: bool) -> None:
        """All comparisons of one scene, in an empty database."""
        with connect_sql(dsn) as connection:
            scene, sets = SceneMaker(connection, seed, filters, tame).make()
            self.outcomes += [scene.compare(names, everything) for names, everything in sets]
            self.turned += scene.turned

    def count(self, *verdicts: Verdict) -> int:
        """The cases, (table, filter, change), of some verdicts."""
        return sum(one.cases for one in self.outcomes if one.verdict in verdicts)

    def check(self) -> None:
        """No difference; most was compared; everything that can happen to a change did happen."""
        different = [one.detail for one in self.outcomes if one.verdict is Verdict.DIFFERENT]
        assert not different, f"{len(different)}:\n" + "\n".join(different[:3])
        same = self.count(Verdict.SAME, Verdict.SAME_ERROR)
        assert same > 0.7 * self.count(*Verdict), Counter(one.verdict for one in self.outcomes)
        seen: Counter[str] = sum((one.seen for one in self.outcomes), Counter())
        for kind in ("I", "U", "UK", "UO"):
            assert seen[f"{kind} with unchanged values"], seen
        assert {"I", "DK", "DO", "T"} <= seen.keys()
        assert self.turned.keys() == {"UI", "UD", "UU"}
