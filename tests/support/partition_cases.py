"""Partitioned tables whose partitions come and go with rows, for whole runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.databases import Database


class Case(NamedTuple):
    """A partitioned table that loses partitions.

    Attributes:
        columns: of the table; ``id`` is its key, with the columns of ``key``.
        by: how it is partitioned.
        partitions: its partitions: name -> bound; of one below another partition, its parent comes
            before the name.
        value: of the partition column, for each number from 0 to 299.
        change: what takes partitions away, in one look.
        is_copied: the table is copied again.
        since: the first version of PostgreSQL that has the statements.
        later: follows once the copies have ended.
    """

    columns: str
    by: str
    partitions: dict[str, str]
    value: str
    change: tuple[str, ...]
    is_copied: bool = False
    since: int = 11
    later: tuple[str, ...] = ()


def ranged(partitions: dict[str, str], *change: str, **more: Any) -> Case:
    """A table that is partitioned by ranges of a whole number."""
    return Case("k int", "RANGE (k)", partitions, "i", change, **more)


INTS = {
    "{t}_0": "FROM (MINVALUE) TO (100)",
    "{t}_1": "FROM (100) TO (200)",
    "{t}_2": "FROM (200) TO (MAXVALUE)",
}
DATES = {
    "{t}_0": "FROM ('2024-01-01') TO ('2024-03-01')",
    "{t}_1": "FROM ('2024-03-01') TO ('2024-05-01')",
    "{t}_2": "FROM ('2024-05-01') TO ('2025-01-01')",
}
LEVEL = {
    "{t}_0": "FROM (0) TO (100)", "{t}_1": "FROM (100) TO (300) PARTITION BY RANGE (id)",
    "{t}_1 {t}_2": "FROM (0) TO (150)", "{t}_1 {t}_3": "FROM (150) TO (300)",
}  # fmt: skip
LISTS = {
    "{t}_0": "FROM (0) TO (100)", "{t}_1": "FROM (100) TO (300) PARTITION BY LIST (id)",
    "{t}_1 {t}_2": "IN (110, 120)", "{t}_1 {t}_3": "DEFAULT",
}  # fmt: skip
DROP = ("DROP TABLE {t}_1",)
DETACH = ("ALTER TABLE {t} DETACH PARTITION {t}_1",)
DETACH_SLOWLY = ("ALTER TABLE {t} DETACH PARTITION {t}_1 CONCURRENTLY",)
CASES = {
    "dropped": ranged(INTS, *DROP),
    "detached": Case("k bigint", "RANGE (k)", INTS, "i", DETACH),
    "detached_slowly": ranged(INTS, *DETACH_SLOWLY, since=14),
    "made_again": ranged(INTS, *DROP,
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (120) TO (190)",
        "INSERT INTO {t} SELECT i, i, 'again' FROM generate_series(150, 180) i",
        "UPDATE {t} SET v = 'changed' WHERE k % 3 = 0", "DELETE FROM {t} WHERE k % 10 = 0"),
    "attached_again": ranged(INTS, *DETACH, "UPDATE {t}_1 SET v = 'apart' WHERE k % 2 = 0",
        "DELETE FROM {t}_1 WHERE k < 120", "INSERT INTO {t}_1 VALUES (1000, 150, 'apart')",
        "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (100) TO (200)",
        "UPDATE {t} SET id = id + 2000 WHERE k = 151"),
    "attached_at_once": ranged({"{t}_0": "FROM (0) TO (300)"},
        "BEGIN; CREATE TABLE {t}_1 (LIKE {t} INCLUDING ALL);"
         "INSERT INTO {t}_1 SELECT i, i, 'late' FROM generate_series(300, 309) i;"
         "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (300) TO (400); COMMIT",
        "UPDATE {t} SET v = 'changed' WHERE k > 305"),
    "listed": Case(
        "k text", "LIST (k)", {"{t}_0": "IN ('a')", "{t}_1": "IN ('it''s', 'c')"},
        """('{a,"it''s",c}'::text[])[1 + i % 3]""", DROP,
    ),
    "dated": Case(
        "k date", "RANGE (k)",
        DATES, "date '2024-01-01' + i", DROP,
    ),
    "timed": Case(
        "k timestamptz", "RANGE (k)",
        {"{t}_0": "FROM ('2024-01-01') TO ('2024-01-05')",
         "{t}_1": "FROM ('2024-01-05') TO (MAXVALUE)"},
        "timestamptz '2024-01-01' + i * interval '1 hour'", DROP,
    ),
    "with_rest": Case(
        "k numeric(8,2)", "RANGE (k)", {"{t}_1": "FROM (100.5) TO (200)", "{t}_rest": "DEFAULT"},
        "i",
        (*DROP, "INSERT INTO {t} SELECT i, i, 'rest' FROM generate_series(150, 199, 7) i"),
    ),
    "without_rest": ranged({"{t}_0": "FROM (100) TO (200)", "{t}_1": "DEFAULT"}, *DROP),
    "with_levels": ranged(LISTS, "DROP TABLE {t}_2",
        "UPDATE {t} SET v = 'changed' WHERE id < 130"),
    "with_level": ranged(LISTS, *DROP),
    "level_attached_again": ranged(LEVEL, *DETACH, "UPDATE {t}_1 SET v = 'apart' WHERE k % 2 = 0",
        "DROP TABLE {t}_2", "CREATE TABLE {t}_4 PARTITION OF {t}_1 FOR VALUES FROM (0) TO (120)",
        "INSERT INTO {t}_1 VALUES (110, 110, 'apart')",
        "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (100) TO (300)",
        "UPDATE {t} SET v = 'later' WHERE k BETWEEN 150 AND 170"),
    "level_with_new_leaf": ranged(LEVEL,
        "BEGIN; CREATE TABLE {t}_4 PARTITION OF {t}_1 FOR VALUES FROM (300) TO (400);"
         "INSERT INTO {t} SELECT i, 250, 'x' FROM generate_series(350, 360) i;"
         "ALTER TABLE {t} DETACH PARTITION {t}_1; COMMIT"),
    "level_without_leaves": ranged(
        {"{t}_0": "FROM (0) TO (300)", "{t}_1": "FROM (300) TO (400) PARTITION BY RANGE (id)"},
        "BEGIN; CREATE TABLE {t}_4 PARTITION OF {t}_1 FOR VALUES FROM (300) TO (400);"
         "INSERT INTO {t} SELECT i, 350, 'x' FROM generate_series(350, 360) i;"
         "DROP TABLE {t}_1; COMMIT"),
    "attached_elsewhere": ranged(INTS, "DROP TABLE {t}_2", *DETACH,
        "DELETE FROM {t}_1 WHERE k < 150", "UPDATE {t}_1 SET v = 'apart' WHERE k = 160",
        "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (150) TO (400)",
        "INSERT INTO {t} VALUES (350, 350, 'new')"),
    "listed_null": Case(
        "k text", "LIST (k)", {"{t}_1": "IN ('a', NULL)", "{t}_rest": "DEFAULT"},
        "('{a,b,c}'::text[])[1 + i % 3]",
        (*DROP, "INSERT INTO {t} SELECT i, 'a', 'again' FROM generate_series(150, 180) i"),
    ),
    "with_hashes": ranged(
        {"{t}_0": "FROM (0) TO (100)", "{t}_1": "FROM (100) TO (300) PARTITION BY HASH (id)",
         **{f"{{t}}_1 {{t}}_{n + 2}": f"WITH (MODULUS 2, REMAINDER {n})" for n in range(2)}},
        "ALTER TABLE {t}_1 DETACH PARTITION {t}_2", "UPDATE {t} SET v = 'x' WHERE k = 250"),
    "hashed": Case(
        "k int", "HASH (k)",
        {f"{{t}}_{n}": f"WITH (MODULUS 2, REMAINDER {n})" for n in range(2)}, "i",
        ("ALTER TABLE {t} DETACH PARTITION {t}_1", "DELETE FROM {t} WHERE id < 9"), is_copied=True,
    ),
}  # fmt: skip


def make(shop: Database, name: str, case: Case) -> None:
    shop.execute(
        f"CREATE TABLE {name} (id int, {case.columns}, v text, PRIMARY KEY (id, k)) "
        f"PARTITION BY {case.by}",
        *(_partition(part.format(t=name), name, bound) for part, bound in case.partitions.items()),
        f"INSERT INTO {name} SELECT i, {case.value}, 'first' FROM generate_series(0, 299) i",
    )


def _partition(names: str, table: str, bound: str) -> str:
    *above, name = names.split()
    of = "DEFAULT" if bound == "DEFAULT" else f"FOR VALUES {bound}"
    return f"CREATE TABLE {name} PARTITION OF {above[0] if above else table} {of}"


def change(shop: Database, name: str, statements: tuple[str, ...]) -> None:
    with shop.connect() as connection:
        connection.autocommit = True
        for statement in statements:
            connection.execute(statement.format(t=name).encode())


AGAIN = "INSERT INTO {t} SELECT i, i, 'again' FROM generate_series(150, 180) i"
BY_OWN_NAME = {
    "truncated": ranged(INTS, "TRUNCATE {t}_1", AGAIN,
        "UPDATE {t} SET v = 'changed' WHERE k % 3 = 0"),
    "truncated_level": ranged(LEVEL, "TRUNCATE {t}_1", AGAIN),
    "truncated_below_level": ranged(LEVEL, "TRUNCATE {t}_3"),
    "truncated_twice": Case(
        "k date", "RANGE (k)", DATES, "date '2024-01-01' + i",
        ("TRUNCATE {t}_1", "INSERT INTO {t} SELECT i, '2024-03-09' FROM generate_series(1, 9) i",
         "TRUNCATE {t}_0, {t}_1",
         "INSERT INTO {t} SELECT i, '2024-03-09' FROM generate_series(3, 5) i"),
    ),
    "truncated_inside": ranged(INTS,
        "BEGIN; DELETE FROM {t} WHERE k IN (120, 150); UPDATE {t} SET id = 1000 WHERE k = 199;"
         "INSERT INTO {t} VALUES (120, 120, 'before'); TRUNCATE {t}_1; INSERT INTO {t}"
         " VALUES (120, 120, 'after'), (121, 121, 'after'); UPDATE {t} SET v = 'later', id = 122"
         " WHERE k = 121; SAVEPOINT a; TRUNCATE {t}_0; ROLLBACK TO a; COMMIT"),
    "truncated_whole": ranged(INTS, "TRUNCATE {t}_0, {t}_1, {t}_2", AGAIN),
    "truncated_and_dropped": ranged(INTS, "TRUNCATE {t}_1", *DROP),
    "truncated_rest": ranged({"{t}_0": "FROM (100) TO (200)", "{t}_1": "DEFAULT"},
        "TRUNCATE {t}_1", "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (250) TO (270)",
        "INSERT INTO {t} VALUES (255, 255, 'again')", is_copied=True),
    "truncated_null": Case(
        "k text", "LIST (k)", {"{t}_0": "IN ('b', 'c')", "{t}_1": "IN ('a', NULL)"},
        "('{a,b,c}'::text[])[1 + i % 3]", ("TRUNCATE {t}_1",),
    ),
    "truncated_rest_below": ranged(LISTS, "TRUNCATE {t}_1",
        "CREATE TABLE {t}_4 PARTITION OF {t}_1 FOR VALUES IN (150, 151)", AGAIN),
    "truncated_hash_below": ranged(
        {"{t}_0": "FROM (0) TO (100)", "{t}_1": "FROM (100) TO (300) PARTITION BY HASH (id)",
         **{f"{{t}}_1 {{t}}_{n + 2}": f"WITH (MODULUS 2, REMAINDER {n})" for n in range(2)}},
        "TRUNCATE {t}_2", "INSERT INTO {t} VALUES (1000, 160, 'again')"),
    "truncated_hash": Case(
        "k int", "HASH (k)",
        {f"{{t}}_{n}": f"WITH (MODULUS 2, REMAINDER {n})" for n in range(2)}, "i",
        ("TRUNCATE {t}_1", AGAIN.replace("i, i,", "300 + i, i,")), is_copied=True,
    ),
}  # fmt: skip
VIA_ROOT = {
    "truncated": ranged(INTS, "TRUNCATE {t}_1",
        "INSERT INTO {t} SELECT i, i, 'again' FROM generate_series(150, 180) i",
        "UPDATE {t} SET v = 'changed' WHERE k % 3 = 0"),
    "truncated_level": ranged(LISTS, "TRUNCATE {t}_1"),
    "attached_at_once": CASES["attached_at_once"],
    "attached_later": ranged({"{t}_0": "FROM (0) TO (300)"},
        "CREATE TABLE {t}_1 (LIKE {t} INCLUDING ALL)",
        "INSERT INTO {t}_1 SELECT i, i, 'late' FROM generate_series(300, 309) i",
        "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (300) TO (400)",
        "UPDATE {t} SET v = 'changed' WHERE k > 305"),
    "detached": ranged(INTS, "UPDATE {t} SET v = 'sent' WHERE k = 150", *DETACH,
        later=("INSERT INTO {t}_1 VALUES (1150, 150, 'apart')",)),
}  # fmt: skip

EMPTIED = {
    "attached_emptied": ranged({"{t}_0": "FROM (0) TO (300)"},
        "CREATE TABLE {t}_1 (LIKE {t} INCLUDING ALL)",
        "INSERT INTO {t}_1 SELECT i, i, 'gone' FROM generate_series(300, 309) i", "TRUNCATE {t}_1",
        "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (300) TO (400)",
        later=("INSERT INTO {t} SELECT i, i, 'sent' FROM generate_series(300, 309) i",)),
}  # fmt: skip
"""Alone: a partition that is loaded would have the stream connect again for this one, too."""


_FILL = "INSERT INTO {t} SELECT i, i, 'gone' FROM generate_series(400, 450) i"
_OTHERS = ("UPDATE {t} SET k = 440, v = 'gone' WHERE id = 150",
           "UPDATE {t} SET k = 151 WHERE id = 401")  # fmt: skip
_MADE = ("CREATE TABLE {t}_9 PARTITION OF {t} FOR VALUES FROM (400) TO (500)", _FILL, *_OTHERS)
_ATTACHED = ("CREATE TABLE {t}_9 (LIKE {t} INCLUDING ALL)",
             "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (400) TO (500)",
             _FILL)  # fmt: skip
_APART = ("ALTER TABLE {t} DETACH PARTITION {t}_9", "DELETE FROM {t}_9 WHERE id % 2 = 0")
_EMPTIED = ("ALTER TABLE {t} DETACH PARTITION {t}_9", "DELETE FROM {t}_9")
_LOW = {"{t}_0": "FROM (0) TO (300)"}
_LEVELS = {
    "{t}_0": "FROM (0) TO (300)", "{t}_1": "FROM (300) TO (900) PARTITION BY RANGE (k)",
}  # fmt: skip
UNSEEN = {
    "dropped": ranged(_LOW, *_MADE, later=("DROP TABLE {t}_9",)),
    "detached": ranged(_LOW, *_MADE,
        later=(*_APART, "INSERT INTO {t}_9 VALUES (999, 460, 'apart')")),
    "made_again": ranged(_LOW, *_MADE, later=("DROP TABLE {t}_9",
         "CREATE TABLE {t}_9 PARTITION OF {t} FOR VALUES FROM (420) TO (600)",
         "INSERT INTO {t} VALUES (430, 430, 'again'), (500, 500, 'again')")),
    "attached_again": ranged(_LOW, *_MADE,
        later=(*_APART, "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (400) TO (500)")),
    "moved": ranged(_LOW, *_MADE, later=(*_APART, "DELETE FROM {t}_9 WHERE k < 420",
         "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (420) TO (700)",
         "INSERT INTO {t} VALUES (650, 650, 'after')")),
    "truncated": ranged(_LOW, *_MADE, "TRUNCATE {t}_9", _FILL, later=("DROP TABLE {t}_9",),
        is_copied=True),
    "attached": ranged(_LOW, *_ATTACHED, later=("DROP TABLE {t}_9",), is_copied=True),
    "attached_twice": ranged(_LOW, *_ATTACHED,
        later=(*_APART, "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (400) TO (480)")),
    "emptied": ranged(_LOW, *_ATTACHED,
        later=(*_EMPTIED, "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (400) TO (500)")),
    "emptied_elsewhere": ranged(_LOW, *_ATTACHED,
        later=(*_EMPTIED, "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (600) TO (700)",
         "INSERT INTO {t} VALUES (650, 650, 'after')")),
    "known_elsewhere": ranged({**_LOW, "{t}_9": "FROM (300) TO (400)"},
        "ALTER TABLE {t} DETACH PARTITION {t}_9",
        "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (400) TO (500)", _FILL,
        later=(*_EMPTIED, "ALTER TABLE {t} ATTACH PARTITION {t}_9 FOR VALUES FROM (600) TO (700)")),
    "emptied_below": ranged(_LOW,
        "CREATE TABLE {t}_8 (LIKE {t} INCLUDING ALL) PARTITION BY RANGE (k)",
        "CREATE TABLE {t}_9 PARTITION OF {t}_8 FOR VALUES FROM (400) TO (500)",
        "ALTER TABLE {t} ATTACH PARTITION {t}_8 FOR VALUES FROM (400) TO (500)", _FILL,
        later=("ALTER TABLE {t} DETACH PARTITION {t}_8", "DELETE FROM {t}_8",
         "ALTER TABLE {t} ATTACH PARTITION {t}_8 FOR VALUES FROM (400) TO (500)")),
    "level": ranged(_LOW,
        "CREATE TABLE {t}_8 PARTITION OF {t} FOR VALUES FROM (400) TO (500) PARTITION BY RANGE(k)",
        "CREATE TABLE {t}_9 PARTITION OF {t}_8 FOR VALUES FROM (400) TO (490)", _FILL, *_OTHERS,
        later=("DROP TABLE {t}_8",)),
    "below_level": ranged(_LEVELS,
        "CREATE TABLE {t}_9 PARTITION OF {t}_1 FOR VALUES FROM (400) TO (500)", _FILL, *_OTHERS,
        later=("DROP TABLE {t}_9",)),
    "to_another_level": ranged({**_LEVELS, "{t}_2": "FROM (900) TO (999) PARTITION BY RANGE (k)"},
        "CREATE TABLE {t}_9 PARTITION OF {t}_1 FOR VALUES FROM (400) TO (500)", _FILL, *_OTHERS,
        later=("ALTER TABLE {t}_1 DETACH PARTITION {t}_9", "UPDATE {t}_9 SET k = k + 500",
         "ALTER TABLE {t}_2 ATTACH PARTITION {t}_9 FOR VALUES FROM (900) TO (999)")),
    "rest": ranged(_LOW, "CREATE TABLE {t}_9 PARTITION OF {t} DEFAULT", _FILL, *_OTHERS,
        later=("DROP TABLE {t}_9",), is_copied=True),
    "rest_below": ranged(_LEVELS, "CREATE TABLE {t}_9 PARTITION OF {t}_1 DEFAULT", _FILL, *_OTHERS,
        later=("DROP TABLE {t}_9",)),
}  # fmt: skip
"""Partitions that come and get rows with ``change``, and are gone or others with ``later``: no look
at the catalog comes in between."""


def publish_via_root(shop: Database, tables: Iterable[str]) -> None:
    """Make the publication that a pipeline is configured for: the server sends root's names."""
    options = "WITH (publish_via_partition_root)"
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE {", ".join(tables)} {options}')
