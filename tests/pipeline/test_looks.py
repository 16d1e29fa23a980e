"""What left and came back between two looks at the catalog: copied again, and equal."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline

pytestmark = pytest.mark.usefixtures("spark")

PLAIN = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a int)",
    "INSERT INTO {t} SELECT i, i FROM generate_series(1, 5) i",
)
PARTS = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {t}_high PARTITION OF {t} FOR VALUES FROM (10) TO (20)",
    "INSERT INTO {t} VALUES (1, 1), (11, 11)",
)
COPIED = {
    "type_rewritten": (PLAIN, "ALTER TABLE {t} ALTER a TYPE bigint USING a * 2"),
    "type_rewritten_and_back": (
        PLAIN,
        "ALTER TABLE {t} ALTER a TYPE bigint USING a + 1",
        "ALTER TABLE {t} ALTER a TYPE int USING a + 1",
    ),
    "column_reused": (
        PLAIN,
        "ALTER TABLE {t} ADD c int",
        "UPDATE {t} SET c = id",
        "ALTER TABLE {t} DROP c",
        "ALTER TABLE {t} ADD c int",
    ),
    "column_with_a_default": (PLAIN, "ALTER TABLE {t} ADD c int DEFAULT 7"),
    "column_filled_without_a_trace": (
        PLAIN,
        "CREATE DOMAIN {t}_seven AS int DEFAULT 7 CHECK (VALUE > 0)",
        "ALTER TABLE {t} ADD c {t}_seven",
    ),
    "column_sent_from_now_on": (
        (*PLAIN, "ALTER TABLE {t} ADD c int GENERATED ALWAYS AS (a * 2) STORED"),
        "ALTER TABLE {t} ALTER c DROP EXPRESSION",
    ),
    "label_renamed": (
        (
            "CREATE TYPE {t}_mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE {t} (id int PRIMARY KEY, a {t}_mood[])",
            "INSERT INTO {t} VALUES (1, '{{ok}}')",
        ),
        "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'",
    ),
    "attribute_dropped": (
        (
            "CREATE TYPE {t}_pair AS (x int, y text)",
            "CREATE TABLE {t} (id int PRIMARY KEY, a {t}_pair)",
            "INSERT INTO {t} VALUES (1, ROW(1, 'y'))",
        ),
        "ALTER TYPE {t}_pair DROP ATTRIBUTE x",
    ),
    "not_published_for_a_while": (
        PLAIN,
        'ALTER PUBLICATION "{p}" DROP TABLE {t}',
        "UPDATE {t} SET a = 0",
        'ALTER PUBLICATION "{p}" ADD TABLE {t}',
    ),
    "detached_for_a_while": (
        PARTS,
        "ALTER TABLE {t} DETACH PARTITION {t}_low",
        "UPDATE {t}_low SET a = 0",
        "ALTER TABLE {t} ATTACH PARTITION {t}_low FOR VALUES FROM (0) TO (10)",
    ),
    "leaf_truncated_via_root": (PARTS, "TRUNCATE {t}_low"),
}
HARMLESS = {
    "maintained": (
        (*PLAIN, "ALTER TABLE {t} ADD c int DEFAULT 7"),
        "GRANT UPDATE (a) ON {t} TO PUBLIC",
        "ALTER TABLE {t} ALTER a SET DEFAULT 5",
        "ALTER TABLE {t} ALTER a SET STATISTICS 50",
        "VACUUM FULL {t}",
        "CLUSTER {t} USING {t}_pkey",
    ),
    "label_added": (
        (
            "CREATE TYPE {t}_mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE {t} (id int PRIMARY KEY, a {t}_mood)",
            "INSERT INTO {t} VALUES (1, 'ok')",
        ),
        "ALTER TYPE {t}_mood ADD VALUE 'low' BEFORE 'sad'",
    ),
    "published_as_before": (PLAIN, 'ALTER PUBLICATION "{p}" ADD TABLE {t}_other'),
}


def test_what_left_and_came_back_between_two_looks(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    rows = {**COPIED, **HARMLESS}
    for table, (setup, *_) in rows.items():
        shop.execute(*(sql.format(t=table, p=shop.name) for sql in setup))
    shop.execute(
        "CREATE TABLE published_as_before_other (id int PRIMARY KEY)",
        f'CREATE PUBLICATION "{shop.name}" FOR TABLE {", ".join(rows)}'
        " WITH (publish_via_partition_root = true)",
    )
    one.once()
    one.assert_equal(*rows)
    for table, (_, *statements) in rows.items():
        shop.execute(*(sql.format(t=table, p=shop.name) for sql in statements))
    one.once()
    one.assert_equal(*rows)
    copies = {table: one.table(table).copy_number for table in rows}
    assert copies == {**dict.fromkeys(COPIED, 2), **dict.fromkeys(HARMLESS, 1)}
    # What was seen once is not seen again.
    one.once()
    assert copies == {table: one.table(table).copy_number for table in rows}
