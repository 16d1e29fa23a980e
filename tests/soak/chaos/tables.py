"""Ten kinds of table, and the statements that change them.

Every statement takes the ids ``{low}`` to ``{high}`` and the table's name ``{t}``, and works
whatever columns a schema change has added: it names its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of table.

    Attributes:
        table: its name in SQL, quoted where it has to be.
        create: makes it.
        insert, update, delete: for some ids; empty where the kind does not allow it.
        move: gives rows other keys.
        extras: further statements.
        condition, columns: a row filter and a column list that a publication may have; empty: none.
    """

    table: str
    create: str
    insert: str
    update: str = ""
    delete: str = ""
    move: str = ""
    extras: tuple[str, ...] = ()
    condition: str = ""
    columns: str = ""

    @property
    def title(self) -> str:
        """The name with its schema, without quotes."""
        schema, _, name = self.table.rpartition(".")
        return f"{_unquoted(schema) or 'public'}.{_unquoted(name)}"

    @property
    def published(self) -> str:
        """The table in CREATE PUBLICATION, with its list and its filter."""
        columns = f" ({self.columns})" if self.columns else ""
        where = f" WHERE ({self.condition})" if self.condition else ""
        return f"{self.table}{columns}{where}"

    @property
    def published_rows(self) -> str:
        """A query of what is published so."""
        where = f" WHERE {self.condition}" if self.condition else ""
        return f"SELECT {self.columns or '*'} FROM {self.table}{where}"

    @property
    def changes(self) -> tuple[str, ...]:
        """All statements but the insert."""
        return tuple(one for one in (self.update, self.delete, self.move, *self.extras) if one)


def _unquoted(name: str) -> str:
    return name.strip('"').replace('""', '"')


_IDS = "FROM generate_series({low}, {high}) i ON CONFLICT DO NOTHING"
_WHERE = "WHERE id BETWEEN {low} AND {high}"
_BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"

KINDS = (
    Kind(
        "plain",
        "CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, v text, m mood DEFAULT 'ok')",
        f"INSERT INTO {{t}} (id, n, v) SELECT i, 0, md5(i::text) {_IDS}",
        f"UPDATE {{t}} SET n = coalesce(n, 0) + 1 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE}",
        f"UPDATE {{t}} SET id = id + 5000 {_WHERE}",
        condition="id % 3 <> 0",
        columns="id, n, m",
    ),
    Kind(
        "bag",
        "CREATE TABLE {t} (id int, n int, v text); ALTER TABLE {t} REPLICA IDENTITY FULL",
        "INSERT INTO {t} (id, n, v) SELECT i % 20, i % 3, NULLIF(i % 4, 0)::text"
        " FROM generate_series({low}, {high}) i",
        "UPDATE {t} SET n = n + 1 WHERE id = {low} % 20",
        "DELETE FROM {t} WHERE id = {low} % 20 AND n = 1",
        "UPDATE {t} SET id = NULL WHERE id = {low} % 20 AND n = 2",
    ),
    Kind(
        "whole_rows",
        "CREATE TABLE {t} (id int PRIMARY KEY, n numeric, v text);"
        "ALTER TABLE {t} REPLICA IDENTITY FULL; ALTER TABLE {t} ALTER v SET STORAGE EXTERNAL",
        f"INSERT INTO {{t}} (id, n, v) SELECT i, i / 7.0, {_BIG} {_IDS}",
        f"UPDATE {{t}} SET n = n + 0.5 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE}",
        f"UPDATE {{t}} SET id = id + 5000, n = NULL {_WHERE}",
        condition="n < 60",
    ),
    Kind(
        "toasted",
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, v text, w text);"
        "ALTER TABLE {t} ALTER v SET STORAGE EXTERNAL, ALTER w SET STORAGE EXTERNAL",
        f"INSERT INTO {{t}} (id, n, v, w) SELECT i, 0, {_BIG} || i, {_BIG} {_IDS}",
        f"UPDATE {{t}} SET n = n + 1 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE}",
        f"UPDATE {{t}} SET id = id + 5000 {_WHERE}",
        (f"UPDATE {{t}} SET w = {_BIG} {_WHERE}",),
        condition="id % 2 = 0",
        columns="id, n, v",
    ),
    Kind(
        "composite",
        "CREATE TABLE {t} (id int, part text, n int, PRIMARY KEY (part, id))",
        f"INSERT INTO {{t}} (id, part, n) SELECT i, chr(97 + i % 3), i {_IDS}",
        f"UPDATE {{t}} SET n = n + 1 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE} AND part = 'a'",
        f"UPDATE {{t}} SET part = part || 'x' {_WHERE}",
        condition="part <> 'b'",
    ),
    Kind(
        "ranged",
        "CREATE TABLE {t} (r int4range, during daterange, n int, PRIMARY KEY (r, during))",
        "INSERT INTO {t} (r, during, n) SELECT int4range(i, i + 1), daterange('2024-01-01',"
        f" '2024-01-01'::date + i % 30 + 1), i {_IDS}",
        "UPDATE {t} SET n = n + 1 WHERE lower(r) BETWEEN {low} AND {high}",
        "DELETE FROM {t} WHERE lower(r) BETWEEN {low} AND {high}",
        "UPDATE {t} SET during = '[2025-01-01,)' WHERE lower(r) BETWEEN {low} AND {high}",
    ),
    Kind(
        "by_index",
        "CREATE TABLE {t} (id int NOT NULL, n int, v varchar(40));"
        "CREATE UNIQUE INDEX by_index_id ON {t} (id);"
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX by_index_id",
        f"INSERT INTO {{t}} (id, n, v) SELECT i, 0, md5(i::text) {_IDS}",
        f"UPDATE {{t}} SET n = n + 1 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE}",
        f"UPDATE {{t}} SET id = id + 5000 {_WHERE}",
        condition="id % 5 <> 1",
    ),
    Kind(
        "insert_only",
        "CREATE TABLE {t} (id int, v text)",
        "INSERT INTO {t} (id, v) SELECT i, md5(i::text) FROM generate_series({low}, {high}) i",
        condition="id % 7 <> 0",
    ),
    Kind(
        "parts",
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF {t} FOR VALUES FROM (0) TO (15000);"
        "CREATE TABLE parts_2 PARTITION OF {t} FOR VALUES FROM (15000) TO (25000)"
        " PARTITION BY RANGE (id);"
        "CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES FROM (15000) TO (21000);"
        "CREATE TABLE parts_2b PARTITION OF parts_2 DEFAULT;"
        "CREATE TABLE parts_rest PARTITION OF {t} DEFAULT",
        f"INSERT INTO {{t}} (id, n, v) SELECT i, 0, md5(i::text) {_IDS}",
        f"UPDATE {{t}} SET n = n + 1 {_WHERE}",
        f"DELETE FROM {{t}} {_WHERE}",
        f"UPDATE {{t}} SET id = id + 5000 {_WHERE}",
        condition="id % 3 <> 1",
    ),
    Kind(
        '"Odd schema"."Sélect ""x"" 100%"',
        'CREATE SCHEMA "Odd schema";'
        'CREATE TABLE {t} ("Id" int PRIMARY KEY, "group by" int, "naïve ""col"".x" text)',
        'INSERT INTO {t} ("Id", "group by", "naïve ""col"".x") SELECT i, 0, md5(i::text) ' + _IDS,
        'UPDATE {t} SET "group by" = "group by" + 1 WHERE "Id" BETWEEN {low} AND {high}',
        'DELETE FROM {t} WHERE "Id" BETWEEN {low} AND {high}',
        'UPDATE {t} SET "Id" = "Id" + 5000 WHERE "Id" BETWEEN {low} AND {high}',
        condition='"Id" % 4 <> 0',
        columns='"Id", "group by"',
    ),
)  # fmt: skip

HARMLESS = (
    "ANALYZE {t}",
    "VACUUM {t}",
    "VACUUM FULL {t}",
    "CREATE INDEX extra_{number} ON {t} ({column})",
    "CREATE INDEX CONCURRENTLY extra_{number} ON {t} ({column})",
    "REINDEX TABLE {t}",
    "REINDEX TABLE CONCURRENTLY {t}",
    "ALTER TABLE {t} ALTER {column} SET STATISTICS 10",
    "ALTER TABLE {t} SET (autovacuum_enabled = off)",
    "GRANT SELECT ON {t} TO PUBLIC",
    "GRANT UPDATE ({column}) ON {t} TO PUBLIC",
    "COMMENT ON TABLE {t} IS 'comment {number}'",
    "ALTER TABLE {t} ADD CONSTRAINT check_{number} CHECK ({column} IS NOT NULL OR true)",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
    "CREATE STATISTICS statistics_{number} ON {column}, (1) FROM {t}",
    "CREATE VIEW view_{number} AS SELECT {column} FROM {t}",
    "CREATE TABLE unrelated_{number} (id int PRIMARY KEY)",
)
CHANGES = (
    "ALTER TABLE {t} ADD extra_{number} int",
    "ALTER TABLE {t} ADD extra_{number} text",
    "ALTER TABLE {t} ADD extra_{number} int DEFAULT {number}",
    "ALTER TABLE {t} ADD extra_{number} float DEFAULT random()",
    (
        "ALTER TABLE {t} ADD extra_{number} int DEFAULT {number};"
        " ALTER TABLE {t} ALTER extra_{number} DROP DEFAULT"
    ),
    "ALTER TABLE {t} DROP {extra}",
    "ALTER TABLE {t} DROP {extra}; ALTER TABLE {t} ADD {extra} int",
    "ALTER TABLE {t} RENAME {extra} TO extra_{number}",
    "ALTER TABLE {t} ALTER {extra} TYPE text USING {extra}::text || 'x'",
    "UPDATE {t} SET {extra} = NULL",
    "TRUNCATE {t}",
    "ALTER TABLE by_index ALTER v TYPE varchar(5{number})",
    "ALTER TABLE plain REPLICA IDENTITY FULL",
    "ALTER TABLE plain REPLICA IDENTITY DEFAULT",
    "ALTER TABLE plain DROP CONSTRAINT plain_pkey; ALTER TABLE plain ADD PRIMARY KEY (id)",
    (
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'old'; ALTER TYPE mood RENAME VALUE 'sad' TO 'ok';"
        " ALTER TYPE mood RENAME VALUE 'old' TO 'sad'"
    ),
    (
        "CREATE TABLE late_{number} (id int PRIMARY KEY, v text);"
        " INSERT INTO late_{number} SELECT i, 'late' FROM generate_series(1, 50) i"
    ),
    "INSERT INTO {late} SELECT max(id) + 1, 'more' FROM {late}",
    "DELETE FROM {late} WHERE id % 7 = 3",
    "DROP TABLE {late}",
    (
        "DROP TABLE {late}; CREATE TABLE {late} (id int PRIMARY KEY, v text);"
        " INSERT INTO {late} VALUES (1, 'again')"
    ),
    "ALTER TABLE {late} RENAME TO late_{number}",
    (
        "ALTER TABLE {late} RENAME TO late_{number};"
        " CREATE TABLE {late} (id int PRIMARY KEY, v text); INSERT INTO {late} VALUES (1, 'new')"
    ),
    (
        "CREATE TABLE parts_{number} PARTITION OF parts FOR VALUES FROM ({number}000000)"
        " TO ({number}500000); INSERT INTO parts (id, n) VALUES ({number}000001, 1)"
    ),
    "DROP TABLE {part}",
    "ALTER TABLE parts DETACH PARTITION {part}; DROP TABLE {part}",
    "ALTER TABLE parts DETACH PARTITION {part}; ALTER TABLE {part} RENAME TO apart_{number}",
    (
        "CREATE TABLE parts_{number} (LIKE parts INCLUDING ALL); ALTER TABLE parts ATTACH"
        " PARTITION parts_{number} FOR VALUES FROM ({number}000000) TO ({number}500000);"
        " INSERT INTO parts (id, n) SELECT {number}000000 + i, i FROM generate_series(1, 9) i"
    ),
    "TRUNCATE parts_1",
    "TRUNCATE parts_2",
    (
        "ALTER TABLE parts DETACH PARTITION parts_2; UPDATE parts_2 SET n = -1;"
        " ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (15000) TO (25000)"
    ),
    "VACUUM FULL parts_1",
)
"""What changes tables and rows, each as one transaction."""
