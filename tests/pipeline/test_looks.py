"""What left and came back between two looks at the catalog: the target equals the source.

What surely was not sent is copied again. What harmless statements also do is verified, and copied
only if it differs.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest
from tests.support.databases import MakeDatabase
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline, Pipeline

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
IN_SCHEMA = (
    "CREATE SCHEMA {t}",
    "CREATE TABLE {t}.{t} (id int PRIMARY KEY, a int)",
    "INSERT INTO {t}.{t} SELECT i, i FROM generate_series(1, 5) i",
)
COPIED = {
    "type_rewritten": (PLAIN, "ALTER TABLE {t} ALTER a TYPE bigint USING a * 2"),
    "column_with_a_default_written_anew": (
        PLAIN,
        "ALTER TABLE {t} ADD c int DEFAULT 7",
        "VACUUM FULL {t}",
        "ALTER TABLE {t} ALTER c DROP DEFAULT",
        "UPDATE {t} SET a = 0 WHERE id = 1",
    ),
    "column_with_another_value_in_a_leaf": (
        PARTS,
        "ALTER TABLE {t} DETACH PARTITION {t}_low",
        "ALTER TABLE {t} ADD c int DEFAULT 7",
        "ALTER TABLE {t}_low ADD c int DEFAULT 8",
        "ALTER TABLE {t} ATTACH PARTITION {t}_low FOR VALUES FROM (0) TO (10)",
    ),
    "type_without_a_new_file": (
        (
            "CREATE TABLE {t} (id int PRIMARY KEY, a cidr)",
            "INSERT INTO {t} VALUES (1, '10.0.0.1')",
        ),
        "ALTER TABLE {t} ALTER a TYPE inet",
    ),
    "numeric_without_a_limit": (
        ("CREATE TABLE {t} (id int PRIMARY KEY, a numeric(6,2))", "INSERT INTO {t} VALUES (1, 1)"),
        "ALTER TABLE {t} ALTER a TYPE numeric",
        "INSERT INTO {t} VALUES (2, 12345678.125)",
    ),
    "key_moved": (
        (*PLAIN, "ALTER TABLE {t} ADD other int", "UPDATE {t} SET other = id + 5"),
        "UPDATE {t} SET a = 0 WHERE id = 1",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (other)",
        "UPDATE {t} SET id = id + 1",
        "DELETE FROM {t} WHERE id = 3",
    ),
    "key_widened": (
        PLAIN,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, a)",
        "INSERT INTO {t} VALUES (1, 700)",
    ),
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
    "filter_changed": (
        (*PLAIN, "CREATE PUBLICATION {p}_{t} FOR TABLE {t} WHERE (id < 9)"),
        "INSERT INTO {t} VALUES (9, 9)",
        "ALTER PUBLICATION {p}_{t} SET TABLE {t} WHERE (id > 2)",
        "DELETE FROM {t} WHERE id <= 2",
    ),
    "out_of_its_schema_for_a_while": (
        IN_SCHEMA,
        "ALTER PUBLICATION {p}_s DROP TABLES IN SCHEMA {t}",
        "UPDATE {t}.{t} SET a = 0",
        "ALTER PUBLICATION {p}_s ADD TABLES IN SCHEMA {t}",
    ),
}
IN_PLACE = {
    "column_added": (PLAIN, "ALTER TABLE {t} ADD c int"),
    "column_with_a_default": (PLAIN, "ALTER TABLE {t} ADD c int DEFAULT 7"),
    "column_with_a_default_and_changes": (
        PLAIN,
        "UPDATE {t} SET a = 10 WHERE id = 1",
        "INSERT INTO {t} VALUES (6, 6)",
        """BEGIN; INSERT INTO {t} VALUES (7, 7); ALTER TABLE {t} ADD c text DEFAULT 'seven';
        INSERT INTO {t} VALUES (8, 8, NULL); UPDATE {t} SET c = 'x' WHERE id = 2; COMMIT""",
        "ALTER TABLE {t} ALTER c SET DEFAULT 'eight'",
        "INSERT INTO {t} (id) VALUES (9)",
        "UPDATE {t} SET a = 0 WHERE id = 3",
        "DELETE FROM {t} WHERE id = 4",
        "ALTER TABLE {t} ADD d timestamptz NOT NULL DEFAULT now()",
        "INSERT INTO {t} (id) VALUES (10)",
    ),
    "column_with_a_default_in_leaves": (
        PARTS,
        "UPDATE {t} SET a = 0",
        "ALTER TABLE {t} ADD c int[] DEFAULT '{{1,NULL}}'",
        "UPDATE {t} SET a = 1 WHERE id = 11",
        "INSERT INTO {t} VALUES (2, 2, NULL)",
    ),
    "column_with_a_default_dropped": (
        PLAIN,
        "ALTER TABLE {t} ADD c int DEFAULT 7",
        "INSERT INTO {t} VALUES (6, 6)",
        "ALTER TABLE {t} DROP c",
        "INSERT INTO {t} VALUES (7, 7)",
    ),
    "larger_types": (
        (
            "CREATE TABLE {t} (id int PRIMARY KEY, a numeric(6,2), b varchar(5), c timestamp(3))",
            "INSERT INTO {t} VALUES (1, 1234.5, 'abc', '2020-01-01 00:00:00.123')",
            "INSERT INTO {t} VALUES (2, 0)",
        ),
        "UPDATE {t} SET a = 9 WHERE id = 2",
        "ALTER TABLE {t} ALTER a TYPE numeric(10,2), ALTER b TYPE text, ALTER c TYPE timestamp",
        "INSERT INTO {t} VALUES (3, 12345678.9, 'longer than five', '2020-01-01 00:00:00.123456')",
    ),
}
REPLACED = {
    "detached_for_a_while": (
        PARTS,
        "ALTER TABLE {t} DETACH PARTITION {t}_low",
        "UPDATE {t}_low SET a = 0",
        "ALTER TABLE {t} ATTACH PARTITION {t}_low FOR VALUES FROM (0) TO (10)",
    ),
    "leaf_truncated_via_root": (PARTS, "TRUNCATE {t}_low"),
    "root_truncated_via_root": (PARTS, "TRUNCATE {t}", "INSERT INTO {t} VALUES (2, 2)"),
}
VERIFIED_AND_COPIED = {
    # Nobody knows whether the changes were of the first c or of the second.
    "column_reused": (
        PLAIN,
        "ALTER TABLE {t} ADD c int",
        "UPDATE {t} SET c = id",
        "ALTER TABLE {t} DROP c",
        "ALTER TABLE {t} ADD c int",
    ),
    "type_rewritten_and_back": (
        PLAIN,
        "ALTER TABLE {t} ALTER a TYPE bigint USING a + 1",
        "ALTER TABLE {t} ALTER a TYPE int USING a + 1",
    ),
    "same_type_rewritten": (PLAIN, "ALTER TABLE {t} ALTER a TYPE int USING a * 2"),
    "same_type_rewritten_and_vacuumed": (
        PLAIN,
        "ALTER TABLE {t} ALTER a TYPE int USING a * 2",
        "VACUUM FULL {t}",
    ),
    "missing_value_rewritten": (
        (*PLAIN, "ALTER TABLE {t} ADD c int DEFAULT 7"),
        "ALTER TABLE {t} ALTER c TYPE int USING c * 2",
    ),
    "unlogged_for_a_while": (
        IN_SCHEMA,
        "ALTER TABLE {t}.{t} SET UNLOGGED",
        "UPDATE {t}.{t} SET a = 0",
        "ALTER TABLE {t}.{t} SET LOGGED",
    ),
    "in_another_schema_for_a_while": (
        IN_SCHEMA,
        "ALTER TABLE {t}.{t} SET SCHEMA public",
        "UPDATE {t} SET a = 0",
        "ALTER TABLE {t} SET SCHEMA {t}",
    ),
    "updates_not_sent_for_a_while": (
        (*PLAIN, "CREATE PUBLICATION {p}_{t} FOR TABLE {t}"),
        "ALTER PUBLICATION {p}_{t} SET (publish = 'insert')",
        "UPDATE {t} SET a = 0",
        "ALTER PUBLICATION {p}_{t} SET (publish = 'insert, update, delete, truncate')",
    ),
}
VERIFIED = {
    "maintained": (
        (*PLAIN, "ALTER TABLE {t} ADD c int DEFAULT 7"),
        "GRANT UPDATE (a) ON {t} TO PUBLIC",
        "ALTER TABLE {t} ALTER a SET DEFAULT 5",
        "ALTER TABLE {t} ALTER a SET STATISTICS 50",
        "VACUUM FULL {t}",
        "CLUSTER {t} USING {t}_pkey",
    ),
    "leaf_vacuumed_via_root": (PARTS, "VACUUM FULL {t}_low"),
    "vacuumed_in_its_schema": (IN_SCHEMA, "VACUUM FULL {t}.{t}"),
    "options_set_as_they_were": (
        (*PLAIN, "CREATE PUBLICATION {p}_{t} FOR TABLE {t}"),
        "ALTER PUBLICATION {p}_{t} SET (publish = 'insert, update, delete, truncate')",
        "UPDATE {t} SET a = 0",
    ),
}
HARMLESS = {
    "indexed": (
        PLAIN,
        "VACUUM FULL {t}",
        "ANALYZE {t}",
        "REINDEX TABLE CONCURRENTLY {t}",
        "ALTER TABLE {t} SET (fillfactor = 70)",
        "TRUNCATE {t}",
        "INSERT INTO {t} VALUES (2, 2)",
    ),
    "constrained": (
        PLAIN,
        "ALTER TABLE {t} ALTER a SET NOT NULL",
        "ALTER TABLE {t} ALTER a SET STATISTICS 50",
        "ALTER TABLE {t} ADD CHECK (a > 0)",
        "GRANT UPDATE (a) ON {t} TO PUBLIC",
        "UPDATE {t} SET a = 3 WHERE id = 3",
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
    rows = {**COPIED, **VERIFIED_AND_COPIED, **VERIFIED, **IN_PLACE, **HARMLESS, **REPLACED}
    altered = [f"{shop.name}_{t}" for t, (setup, *_) in rows.items() if "PUBLICATION" in setup[-1]]
    in_schema = [table for table, (setup, *_) in rows.items() if setup is IN_SCHEMA]
    publications = [shop.name, f"{shop.name}_s", *altered]
    one.path.write_text(
        one.path.read_text().replace(
            f'publications = ["{shop.name}"]', f"publications = {json.dumps(publications)}"
        )
    )
    for table, (setup, *_) in rows.items():
        shop.execute(*(sql.format(t=table, p=shop.name) for sql in setup))
    listed = [t for t in rows if t not in in_schema and f"{shop.name}_{t}" not in altered]
    shop.execute(
        "CREATE TABLE published_as_before_other (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {shop.name} FOR TABLE {', '.join(listed)}"
        " WITH (publish_via_partition_root = true)",
        f"CREATE PUBLICATION {shop.name}_s FOR TABLES IN SCHEMA {', '.join(in_schema)}",
    )
    one.once()
    assert_all_equal(one, rows, in_schema)
    for table, (_, *statements) in rows.items():
        shop.execute(*(sql.format(t=table, p=shop.name) for sql in statements))
    one.once()
    assert_all_equal(one, rows, in_schema)

    seen = {table: one.table(table) for table in rows}
    copies = {table: seen[table].copy_number for table in rows}
    copied = {**COPIED, **VERIFIED_AND_COPIED}
    assert copies == {**dict.fromkeys(rows, 1), **dict.fromkeys(copied, 2)}
    verified = {table for table in rows if seen[table].verification_number}
    # Which bounds a partition had while it was away, nobody knows: what is replaced is compared.
    assert verified == {*VERIFIED_AND_COPIED, *VERIFIED, "detached_for_a_while"}
    assert not any(record.pending.verification for record in seen.values())
    # What was seen once is not seen again.
    one.once()
    for table, record in seen.items():
        now = one.table(table)
        assert now.copy_number == record.copy_number
        assert now.verification_number == record.verification_number


def assert_all_equal(one: Pipeline, tables: Collection[str], in_schema: Collection[str]) -> None:
    with one.database.connect() as connection:
        for table in tables:
            schema = table if table in in_schema else "public"
            assert_equal(connection, f"{schema}.{table}", one.lake / schema / table)
