"""The table of DDL: what each statement asks of pgsluice.

The outcomes follow from the rules, not from what is seen: what the stream explains costs
nothing, what is suspicious is verified, what surely was not sent is copied. Where the code does
not do so yet, ``known_gap`` says what is seen.
"""

from __future__ import annotations

import re
from typing import Any

from tests.support.ddl.row import (
    AFTER,
    ALL,
    BEFORE,
    CHANGES,
    IN_TRANSACTIONS,
    INSERTED,
    OUTSIDE_TRANSACTIONS,
    PLAIN,
    UNDONE,
    Interrupted,
    Moment,
    Outcome,
    Publisher,
    Row,
)

NOTHING, ADDED, IN_PLACE = Outcome.NOTHING, Outcome.ADDED, Outcome.IN_PLACE
VERIFIED, REPLACED, COPIED, EQUAL, PARKED = (
    Outcome.VERIFIED, Outcome.REPLACED, Outcome.COPIED, Outcome.EQUAL, Outcome.PARKED,
)  # fmt: skip
LOOKED_BETWEEN = frozenset({Moment.SEVERAL_POLLS, Moment.CAPTURE_ONLY})

REFERENCED = f"""
CREATE TABLE {{t}}_other (id int PRIMARY KEY);
INSERT INTO {{t}}_other SELECT generate_series(1, 200);
{PLAIN}
"""
TYPED = """
CREATE TABLE {t} (id int PRIMARY KEY, a TYPE, b text);
INSERT INTO {t} SELECT i, VALUE::TYPE, 'b' || i FROM generate_series(1, 20) i;
"""
VALUES = {
    "varbit(5)": "'101'", "timestamp(0)": "'2020-01-01 12:00'", "cidr": "'10.0.0.0/8'",
}  # fmt: skip
TYPED_BEFORE = "UPDATE {t} SET b = 'before' WHERE id = 1; INSERT INTO {t} (id) VALUES (100)"
GENERATED = """
CREATE TABLE {t} (id int PRIMARY KEY, a int, b text, g int GENERATED ALWAYS AS (a * 2) STORED);
INSERT INTO {t} (id, a) SELECT i, i FROM generate_series(1, 20) i;
"""
NO_KEY = """
CREATE TABLE {t} (id int, a int, b text);
INSERT INTO {t} SELECT i, i, 'b' || i FROM generate_series(1, 20) i;
"""
INSERTS = "INSERT INTO {t} (id, a) VALUES (100, 1)"
MORE_INSERTS = "INSERT INTO {t} (id, a) VALUES (101, 1)"
PARTS = """
CREATE TABLE {t} (id int PRIMARY KEY, a int, b text) PARTITION BY RANGE (id);
CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (1000);
CREATE TABLE {t}_mid PARTITION OF {t} FOR VALUES FROM (1000) TO (3000) PARTITION BY RANGE (id);
CREATE TABLE {t}_m1 PARTITION OF {t}_mid FOR VALUES FROM (1000) TO (2000);
CREATE TABLE {t}_m2 PARTITION OF {t}_mid FOR VALUES FROM (2000) TO (3000);
INSERT INTO {t} SELECT i, i, 'b' || i FROM generate_series(1, 20) i;
INSERT INTO {t} SELECT 1000 + i * 100, i, 'b' || i FROM generate_series(1, 19) i;
"""
LATER_PART = """
CREATE TABLE {t}_late (id int PRIMARY KEY, a int, b text);
INSERT INTO {t}_late SELECT i, i, 'late' FROM generate_series(5000, 5010) i;
"""
NEW_PART = "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)"
NEW_PART_BELOW = "CREATE TABLE {t}_m3 PARTITION OF {t}_mid DEFAULT"
LATER_MID = """
CREATE TABLE {t}_late (id int PRIMARY KEY, a int, b text) PARTITION BY RANGE (id);
CREATE TABLE {t}_l1 PARTITION OF {t}_late DEFAULT;
"""
ATTACH = "ALTER TABLE {t} ATTACH PARTITION {t}_late FOR VALUES FROM (5000) TO (6000)"
ENUM = """
CREATE TYPE {t}_mood AS ENUM ('sad', 'ok');
CREATE TABLE {t} (id int PRIMARY KEY, a {t}_mood, b text);
INSERT INTO {t} SELECT i, 'ok', 'b' || i FROM generate_series(1, 20) i;
"""
COMPOSITE = """
CREATE TYPE {t}_pair AS (x int, y text);
CREATE TABLE {t} (id int PRIMARY KEY, a {t}_pair, b text);
INSERT INTO {t} SELECT i, ROW(i, 'y')::{t}_pair, 'b' || i FROM generate_series(1, 20) i;
"""
DOMAIN = """
CREATE DOMAIN {t}_whole AS int;
CREATE TABLE {t} (id int PRIMARY KEY, a {t}_whole, b text);
INSERT INTO {t} SELECT i, i, 'b' || i FROM generate_series(1, 20) i;
"""
IN_SCHEMA = """
CREATE SCHEMA {t}_s;
CREATE TABLE {t}_s.{t} (id int PRIMARY KEY, a int, b text);
INSERT INTO {t}_s.{t} SELECT i, i, 'b' || i FROM generate_series(1, 20) i;
"""


def row(name: str, expected: Outcome, *ddl: str, **more: Any) -> Row:
    """A row, with its statements last."""
    return Row(name, ddl, expected, **more)


def harmless(name: str, *ddl: str, **more: Any) -> Row:
    """A row that costs nothing."""
    return Row(name, ddl, NOTHING, **more)


def maintained(name: str, *ddl: str, **more: Any) -> Row:
    """A row that costs nothing and that no transaction takes."""
    return Row(name, ddl, NOTHING, moments=OUTSIDE_TRANSACTIONS, **more)


def typed(name: str, of: str, to: str, expected: Outcome, **more: Any) -> Row:
    """ALTER COLUMN a TYPE."""
    return Row(
        name,
        (f"ALTER TABLE {{t}} ALTER a TYPE {to}",),
        expected,
        setup=TYPED.replace("TYPE", of).replace("VALUE", VALUES.get(of, "i")),
        before=TYPED_BEFORE,
        **more,
    )


REPACKED = """
CREATE TABLE {t}_repack (LIKE {t} INCLUDING INDEXES);
INSERT INTO {t}_repack SELECT * FROM {t} ORDER BY id DESC;
"""
SWAP_FILES = """
LOCK TABLE {t}, {t}_repack;
UPDATE pg_catalog.pg_class c
SET relfilenode = o.relfilenode, reltoastrelid = o.reltoastrelid
FROM (SELECT relname, relfilenode, reltoastrelid FROM pg_catalog.pg_class) o
WHERE (c.relname, o.relname) IN (('{t}', '{t}_repack'), ('{t}_repack', '{t}'),
    ('{t}_pkey', '{t}_repack_pkey'), ('{t}_repack_pkey', '{t}_pkey'));
UPDATE pg_catalog.pg_depend d
SET refobjid = CASE refobjid WHEN '{t}'::regclass THEN '{t}_repack'::regclass
    ELSE '{t}'::regclass END
FROM pg_catalog.pg_class c
WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND c.relkind = 't'
    AND d.refobjid IN ('{t}'::regclass, '{t}_repack'::regclass);
"""
SWAP_NAMES = """
BEGIN; ALTER TABLE {t} RENAME a TO old; ALTER TABLE {t} RENAME c TO a;
ALTER TABLE {t} RENAME old TO c; COMMIT
"""
ADD_FILL_RENAME = """
BEGIN; ALTER TABLE {t} ADD x int; UPDATE {t} SET x = id; ALTER TABLE {t} RENAME x TO y;
UPDATE {t} SET b = 'y' WHERE id = 6; COMMIT
"""


COLUMNS = (
    row("add a nullable column", ADDED, "ALTER TABLE {t} ADD c int"),
    row("add a nullable column and write it", ADDED, "ALTER TABLE {t} ADD c int",
        "UPDATE {t} SET c = 7 WHERE id < 10"),
    row("add a constant default", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7"),
    row("add a constant default nothing written", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        after=""),
    row("add a constant not null", ADDED, "ALTER TABLE {t} ADD c int NOT NULL DEFAULT 7"),
    row("add default now", ADDED, "ALTER TABLE {t} ADD c timestamptz DEFAULT now()"),
    row("add a default and drop it", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        "ALTER TABLE {t} ALTER c DROP DEFAULT"),
    row("add a default and set another", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        "ALTER TABLE {t} ALTER c SET DEFAULT 8"),
    row("add a default vacuum full drop the default", EQUAL, "ALTER TABLE {t} ADD c int DEFAULT 7",
        "VACUUM FULL {t}", "ALTER TABLE {t} ALTER c DROP DEFAULT", moments=OUTSIDE_TRANSACTIONS),
    row("add a volatile default", COPIED, "ALTER TABLE {t} ADD c float DEFAULT random()"),
    row("add a volatile default nothing written", COPIED,
        "ALTER TABLE {t} ADD c float DEFAULT random()", after=""),
    row("add a volatile default drop it and update one row", COPIED,
        "ALTER TABLE {t} ADD c float DEFAULT random()", "ALTER TABLE {t} ALTER c DROP DEFAULT",
        "UPDATE {t} SET c = 0 WHERE id = 1", after=""),
    row("add a serial column", COPIED, "ALTER TABLE {t} ADD c serial"),
    row("add an identity column", COPIED, "ALTER TABLE {t} ADD c int GENERATED ALWAYS AS IDENTITY"),
    harmless("add a stored generated column",
        "ALTER TABLE {t} ADD c int GENERATED ALWAYS AS (a + 1) STORED"),
    harmless("add a virtual generated column",
        "ALTER TABLE {t} ADD c int GENERATED ALWAYS AS (a + 1) VIRTUAL", since=18),
    row("add a unique column with a reference", EQUAL,
        "ALTER TABLE {t} ADD c int UNIQUE REFERENCES {t}_other DEFAULT 7",
        "ALTER TABLE {t} ALTER c DROP DEFAULT", setup=REFERENCED.replace("1, 20", "1, 1"),
        before="", after="INSERT INTO {t} (id) VALUES (101)"),
    harmless("add a column that exists", "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS a int",
        "ALTER TABLE {t} DROP COLUMN IF EXISTS zz", "ALTER TABLE {t} SET WITHOUT OIDS"),
    row("add a column and drop it", IN_PLACE, "ALTER TABLE {t} ADD c int DEFAULT 7",
        "ALTER TABLE {t} DROP c"),
    row("add a column equal but for case", PARKED, 'ALTER TABLE {t} ADD "A" int',
        words="differ only by upper and lower case"),
    row("add a column equal but for case and rename it", EQUAL, 'ALTER TABLE {t} ADD "A" int',
        CHANGES, 'ALTER TABLE {t} RENAME "A" TO c'),
    row("drop a column", NOTHING, "ALTER TABLE {t} DROP a"),
    row("drop a column nothing written", NOTHING, "ALTER TABLE {t} DROP a", after=""),
    row("drop a column cascade", NOTHING, "ALTER TABLE {t} DROP a CASCADE",
        setup=PLAIN + "CREATE VIEW {t}_v AS SELECT a FROM {t};"),
    row("drop a column of the key", EQUAL, "ALTER TABLE {t} DROP other",
        "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        setup=PLAIN + "ALTER TABLE {t} ADD other int NOT NULL DEFAULT 1, DROP CONSTRAINT "
        "{t}_pkey, ADD PRIMARY KEY (id, other);"),
    row("drop and add under the same name", EQUAL, "ALTER TABLE {t} DROP a",
        "ALTER TABLE {t} ADD a int"),
    row("drop and add under the same name nothing written", EQUAL, "ALTER TABLE {t} DROP a",
        "ALTER TABLE {t} ADD a int", after=""),
    row("drop and add with a default", EQUAL, "ALTER TABLE {t} DROP a",
        "ALTER TABLE {t} ADD a int DEFAULT 7"),
    row("drop and add with another type", EQUAL, "ALTER TABLE {t} DROP a",
        "ALTER TABLE {t} ADD a date DEFAULT '2020-01-01'"),
    row("drop and add under a name equal but for case", EQUAL, "ALTER TABLE {t} DROP a",
        'ALTER TABLE {t} ADD "A" int DEFAULT 3'),
    row("add fill drop add under the same name", EQUAL, "ALTER TABLE {t} ADD c int",
        "UPDATE {t} SET c = id", "ALTER TABLE {t} DROP c", "ALTER TABLE {t} ADD c int"),
    row("rename a column", EQUAL, "ALTER TABLE {t} RENAME b TO c",
        "UPDATE {t} SET c = 'c' WHERE id = 6", after="INSERT INTO {t} (id) VALUES (101)"),
    row("rename a column nothing written", EQUAL, "ALTER TABLE {t} RENAME b TO c", after=""),
    # A look between the two statements sees a rename, as in the rows above.
    harmless("rename a column there and back", "ALTER TABLE {t} RENAME b TO c",
        "ALTER TABLE {t} RENAME c TO b", at={Moment.SEVERAL_POLLS: EQUAL}),
    row("swap the names of two columns", EQUAL, "ALTER TABLE {t} RENAME a TO old",
        "ALTER TABLE {t} RENAME b TO a", "ALTER TABLE {t} RENAME old TO b", before="",
        after="UPDATE {t} SET b = 0 WHERE id = 2; DELETE FROM {t} WHERE id = 3"),
    harmless("swap the names of two columns there and back", SWAP_NAMES, SWAP_NAMES,
        setup=PLAIN + "ALTER TABLE {t} ADD c int; UPDATE {t} SET c = -a;",
        at={Moment.SEVERAL_POLLS: EQUAL}, moments=OUTSIDE_TRANSACTIONS),
    row("rename the key's column", EQUAL, "ALTER TABLE {t} RENAME id TO number",
        after="UPDATE {t} SET a = 9 WHERE number = 2; DELETE FROM {t} WHERE number = 3"),
    # Each column of these comes and has another name before the next look; a look in between
    # sees a rename, as above.
    row("add fill rename and update one row", ADDED, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = id", "ALTER TABLE {t} RENAME x TO y",
        "UPDATE {t} SET b = 'y' WHERE id = 6", at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill and rename", ADDED, "ALTER TABLE {t} ADD x int", "UPDATE {t} SET x = id",
        "ALTER TABLE {t} RENAME x TO y", after="", at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill rename and add under the old name", ADDED, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = id", "ALTER TABLE {t} RENAME x TO y",
        "ALTER TABLE {t} ADD x int DEFAULT 4", "UPDATE {t} SET b = 'y' WHERE id IN (6, 7)",
        at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill and rename in one transaction", ADDED, ADD_FILL_RENAME,
        moments=OUTSIDE_TRANSACTIONS),
    row("add a default write rename and drop the default", ADDED,
        "ALTER TABLE {t} ADD x text DEFAULT 'd'", "UPDATE {t} SET x = 'w' WHERE id IN (6, 7, 8)",
        "ALTER TABLE {t} RENAME x TO y", "ALTER TABLE {t} ALTER y DROP DEFAULT",
        "INSERT INTO {t} (id) VALUES (103)", at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill and rename to another case", ADDED, 'ALTER TABLE {t} ADD "X" int',
        'UPDATE {t} SET "X" = id', 'ALTER TABLE {t} RENAME "X" TO x',
        at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill drop and add another", EQUAL, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = id", "ALTER TABLE {t} DROP x", "ALTER TABLE {t} ADD y int"),
    row("add fill drop another and rename to it", EQUAL, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = -id", "ALTER TABLE {t} DROP a", "ALTER TABLE {t} RENAME x TO a"),
    row("add fill and rename in leaves", ADDED, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = id", "ALTER TABLE {t} RENAME x TO y", setup=PARTS, after=AFTER,
        at={Moment.SEVERAL_POLLS: EQUAL}),
    row("add fill and rename in leaves of other numbers", ADDED, "ALTER TABLE {t} ADD x int",
        "UPDATE {t} SET x = id", "ALTER TABLE {t} RENAME x TO y",
        "ALTER TABLE {t} ADD x int DEFAULT 4", "UPDATE {t} SET b = 'y' WHERE id < 7",
        setup=PARTS + """
CREATE TABLE {t}_odd (z int, b text, a int, id int PRIMARY KEY);
ALTER TABLE {t}_odd DROP z;
ALTER TABLE {t} ATTACH PARTITION {t}_odd FOR VALUES FROM (5000) TO (6000);
INSERT INTO {t} VALUES (5001, 1, 'odd'), (5002, 2, 'odd');
""",
        at={Moment.SEVERAL_POLLS: EQUAL}),
    typed("longer varchar", "varchar(10)", "varchar(20)", IN_PLACE),
    typed("varchar to text", "varchar(10)", "text", IN_PLACE),
    typed("text to varchar", "text", "varchar", IN_PLACE),
    typed("longer bit string", "varbit(5)", "varbit(9)", IN_PLACE),
    typed("finer timestamp", "timestamp(0)", "timestamp(3)", EQUAL),
    typed("cidr to inet", "cidr", "inet", EQUAL),
    typed("larger numeric", "numeric(6,2)", "numeric(10,2)", IN_PLACE),
    typed("numeric without a limit", "numeric(6,2)", "numeric", EQUAL),
    typed("the same type again", "int", "int", NOTHING),
    typed("another collation", "text", 'text COLLATE "C"', IN_PLACE),
    typed("shorter varchar", "varchar(20)", "varchar(10)", COPIED),
    typed("numeric of another scale", "numeric(6,2)", "numeric(8,4)", COPIED),
    typed("int to bigint", "int", "bigint", COPIED),
    typed("int to bigint nothing written", "int", "bigint", COPIED, after=""),
    typed("int to text", "int", "text", COPIED),
    typed("int times two", "int", "int USING a * 2", COPIED),
    typed("int times two nothing written", "int", "int USING a * 2", COPIED, after=""),
    typed("int to bigint negated", "int", "bigint USING -a", COPIED),
    typed("text to int", "text", "int USING a::int", COPIED),
    typed("int to an array", "int", "int[] USING ARRAY[a]", COPIED),
    row("int to bigint and back", COPIED, "ALTER TABLE {t} ALTER a TYPE bigint USING a + 1",
        "ALTER TABLE {t} ALTER a TYPE int USING a + 1"),
    row("timestamp to timestamptz", EQUAL, "ALTER TABLE {t} ALTER c TYPE timestamptz",
        setup=PLAIN + "ALTER TABLE {t} ADD c timestamp DEFAULT '2020-01-01 12:00';"),
    row("the key's type to bigint", COPIED, "ALTER TABLE {t} ALTER id TYPE bigint"),
    row("the key's varchar longer", IN_PLACE, "ALTER TABLE {t} ALTER k TYPE varchar(20)",
        setup="CREATE TABLE {t} (k varchar(10) PRIMARY KEY, a int);INSERT INTO {t} SELECT "
        "i::text, i FROM generate_series(1, 20) i", before="UPDATE {t} SET a = 0 WHERE k = '1'",
        after="UPDATE {t} SET a = 0 WHERE k = '2'; DELETE FROM {t} WHERE k = '3'"),
    harmless("set a default", "ALTER TABLE {t} ALTER a SET DEFAULT 9"),
    harmless("set and drop a default", "ALTER TABLE {t} ALTER a SET DEFAULT 9",
        "ALTER TABLE {t} ALTER a DROP DEFAULT"),
    harmless("set and drop not null", "DELETE FROM {t} WHERE b IS NULL",
        "ALTER TABLE {t} ALTER b SET NOT NULL", "ALTER TABLE {t} ALTER b DROP NOT NULL"),
    harmless("not null constraint with a name", "DELETE FROM {t} WHERE b IS NULL",
        "ALTER TABLE {t} ADD CONSTRAINT {t}_n NOT NULL b NOT VALID",
        "ALTER TABLE {t} VALIDATE CONSTRAINT {t}_n", "ALTER TABLE {t} DROP CONSTRAINT {t}_n",
        since=18),
    harmless("set statistics", "ALTER TABLE {t} ALTER a SET STATISTICS 50"),
    harmless("set storage", "ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL"),
    harmless("set compression", "ALTER TABLE {t} ALTER b SET COMPRESSION pglz", since=14),
    harmless("set attribute options", "ALTER TABLE {t} ALTER a SET (n_distinct = 5)"),
    harmless("become an identity column",
        "ALTER TABLE {t} ALTER id ADD GENERATED BY DEFAULT AS IDENTITY",
        "ALTER TABLE {t} ALTER id SET GENERATED BY DEFAULT RESTART WITH 500",
        "ALTER TABLE {t} ALTER id DROP IDENTITY"),
    row("drop an expression", COPIED, "ALTER TABLE {t} ALTER g DROP EXPRESSION", setup=GENERATED,
        since=13),
    row("drop an expression nothing written", COPIED, "ALTER TABLE {t} ALTER g DROP EXPRESSION",
        setup=GENERATED, after="", since=13),
    harmless("set another expression", "ALTER TABLE {t} ALTER g SET EXPRESSION AS (a * 3)",
        setup=GENERATED, since=17),
)  # fmt: skip

CONSTRAINTS_AND_STORAGE = (
    harmless("check constraint", "ALTER TABLE {t} ADD CONSTRAINT {t}_c CHECK (id > 0) NOT VALID",
        "ALTER TABLE {t} VALIDATE CONSTRAINT {t}_c",
        "ALTER TABLE {t} RENAME CONSTRAINT {t}_c TO {t}_d",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_d"),
    harmless("foreign key",
        "ALTER TABLE {t} ADD CONSTRAINT {t}_f FOREIGN KEY (id) REFERENCES {t}_other",
        "ALTER TABLE {t} ALTER CONSTRAINT {t}_f DEFERRABLE",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_f", setup=REFERENCED),
    harmless("unique constraint", "ALTER TABLE {t} ADD CONSTRAINT {t}_u UNIQUE (id, a)",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_u"),
    harmless("exclusion constraint", "ALTER TABLE {t} ADD CONSTRAINT {t}_x EXCLUDE (id WITH =)"),
    harmless("constraint that is not enforced",
        "ALTER TABLE {t} ADD CONSTRAINT {t}_c CHECK (id > 0) NOT ENFORCED",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_c", since=18),
    harmless("storage options", "ALTER TABLE {t} SET (fillfactor = 70)",
        "ALTER TABLE {t} RESET (fillfactor)"),
    harmless("autovacuum options", "ALTER TABLE {t} SET (autovacuum_enabled = off)"),
    harmless("set logged", "ALTER TABLE {t} SET LOGGED"),
    harmless("row level security", "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY {t}_p ON {t} USING (id < 10)", "ALTER TABLE {t} FORCE ROW LEVEL SECURITY",
        "ALTER TABLE {t} DISABLE ROW LEVEL SECURITY"),
    harmless("triggers",
        "CREATE TRIGGER {t}_g BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION "
        "suppress_redundant_updates_trigger()", "ALTER TABLE {t} DISABLE TRIGGER {t}_g",
        "DROP TRIGGER {t}_g ON {t}"),
    harmless("rules", "CREATE RULE {t}_r AS ON UPDATE TO {t} DO ALSO NOTHING",
        "ALTER TABLE {t} DISABLE RULE {t}_r", "DROP RULE {t}_r ON {t}"),
    harmless("owner", "ALTER TABLE {t} OWNER TO pg_monitor"),
    harmless("grants", "GRANT SELECT ON {t} TO PUBLIC", "GRANT UPDATE (a) ON {t} TO PUBLIC",
        "REVOKE ALL ON {t} FROM PUBLIC"),
    harmless("comments", "COMMENT ON TABLE {t} IS 'x'", "COMMENT ON COLUMN {t}.a IS 'y'"),
    harmless("extended statistics", "CREATE STATISTICS {t}_s ON a, b FROM {t}",
        "DROP STATISTICS {t}_s"),
    harmless("views", "CREATE VIEW {t}_v AS SELECT * FROM {t}",
        "CREATE MATERIALIZED VIEW {t}_m AS SELECT * FROM {t}", "DROP VIEW {t}_v"),
    harmless("typed table", "CREATE TYPE {t}_type AS (id int, a int, b text)",
        "ALTER TABLE {t} OF {t}_type", "ALTER TABLE {t} NOT OF"),
    harmless("indexes", "CREATE INDEX {t}_i ON {t} (a)", "ALTER INDEX {t}_i RENAME TO {t}_j",
        "ALTER TABLE {t} CLUSTER ON {t}_j", "ALTER TABLE {t} SET WITHOUT CLUSTER",
        "REINDEX TABLE {t}", "DROP INDEX {t}_j"),
    maintained("indexes concurrently", "CREATE INDEX CONCURRENTLY {t}_i ON {t} (a)",
        "REINDEX TABLE CONCURRENTLY {t}", "DROP INDEX CONCURRENTLY {t}_i"),
    maintained("vacuum", "VACUUM {t}", "VACUUM (FREEZE, ANALYZE) {t}"),
    maintained("vacuum full", "VACUUM FULL {t}"),
    maintained("vacuum full of an older missing value", "VACUUM FULL {t}",
        setup=PLAIN + "ALTER TABLE {t} ADD c int DEFAULT 7;"),
    maintained("vacuum full and another default", "ALTER TABLE {t} ALTER a SET DEFAULT 3",
        "VACUUM FULL {t}"),
    maintained("vacuum full and a grant", "GRANT UPDATE (a) ON {t} TO PUBLIC", "VACUUM FULL {t}"),
    harmless("cluster", "CLUSTER {t} USING {t}_pkey"),
    harmless("cluster of an older missing value", "CLUSTER {t} USING {t}_pkey",
        setup=PLAIN + "ALTER TABLE {t} ADD c int DEFAULT 7;"),
    harmless("swap of files as pg_repack does it", REPACKED, SWAP_FILES, "DROP TABLE {t}_repack"),
    harmless("analyze", "ANALYZE {t}"),
    harmless("another tablespace", "ALTER TABLE {t} SET TABLESPACE ddl_space",
        "ALTER TABLE {t} SET TABLESPACE pg_default", since=15),
    harmless("all tables of a tablespace",
        "ALTER TABLE ALL IN TABLESPACE ddl_space SET TABLESPACE pg_default",
        setup=PLAIN + "ALTER TABLE {t} SET TABLESPACE ddl_space;", since=15),
    harmless("sequence of a column", "CREATE SEQUENCE {t}_s OWNED BY {t}.a",
        "ALTER TABLE {t} ALTER a SET DEFAULT nextval('{t}_s')", "ALTER SEQUENCE {t}_s RESTART 5",
        "DROP SEQUENCE {t}_s CASCADE"),
    harmless("another access method", "ALTER TABLE {t} SET ACCESS METHOD heap_too", since=15),
)  # fmt: skip

KEYS = (
    harmless("key dropped and added",
        "BEGIN; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (id); "
        "COMMIT", moments=OUTSIDE_TRANSACTIONS),
    # Without a key the table stands in the publication of inserts, if capture looks in between: it
    # has left a publication, and may have missed changes. A promotion leaves time for such a look.
    row("key dropped and added with inserts between", NOTHING,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "INSERT INTO {t} (id) VALUES (103)",
        "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        at=dict.fromkeys(LOOKED_BETWEEN | {Moment.PROMOTION}, EQUAL)),
    row("key dropped and added with updates between", COPIED,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", CHANGES, "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        moments=LOOKED_BETWEEN),
    harmless("key swapped using an index", "CREATE UNIQUE INDEX {t}_new ON {t} (id)",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD CONSTRAINT {t}_pkey PRIMARY KEY USING "
        "INDEX {t}_new"),
    row("key moved to other columns", COPIED,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (other)",
        "UPDATE {t} SET id = id + 1", setup=PLAIN + "ALTER TABLE {t} ADD other bigserial;"),
    row("key moved to columns that were nullable", COPIED,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (other)",
        "UPDATE {t} SET id = id + 1",
        setup=PLAIN + "ALTER TABLE {t} ADD other bigint; UPDATE {t} SET other = id + 5;",
        before="UPDATE {t} SET a = a + 1 WHERE id = 1",
        after="UPDATE {t} SET b = 'after' WHERE id = 2; DELETE FROM {t} WHERE id = 3"),
    row("key widened by a column", COPIED,
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, a)",
        "UPDATE {t} SET a = a + 1", before="",
        after="INSERT INTO {t} VALUES (1, 700, 'second of this id'); DELETE FROM {t} WHERE id = 3"),
    row("key added to a table without", COPIED, "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        setup=NO_KEY, before=INSERTS, after=MORE_INSERTS, at={Moment.ROLLED_BACK: NOTHING}),
    row("temporal key instead of a key", EQUAL, "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "ALTER TABLE {t} ADD PRIMARY KEY (r, during WITHOUT OVERLAPS)",
        setup="CREATE TABLE {t} (r int4range, during daterange, a int, PRIMARY KEY (r, "
        "during));INSERT INTO {t} SELECT int4range(i, i + 1), '[2024-01-01,)' FROM "
        "generate_series(1, 9) i;", before="UPDATE {t} SET a = 0 WHERE r = '[1,2)'",
        after="UPDATE {t} SET during = '[2025-01-01,)' WHERE r = '[2,3)';DELETE FROM {t} WHERE "
        "r = '[3,4)'", since=18),
    row("key dropped", EQUAL, "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", before=INSERTS,
        after=MORE_INSERTS),
    row("replica identity full", IN_PLACE, "ALTER TABLE {t} REPLICA IDENTITY FULL"),
    harmless("replica identity full there and back", "ALTER TABLE {t} REPLICA IDENTITY FULL",
        CHANGES, "ALTER TABLE {t} REPLICA IDENTITY DEFAULT"),
    row("replica identity of an equal index", IN_PLACE, "CREATE UNIQUE INDEX {t}_same ON {t} (id)",
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_same"),
    row("replica identity without the key", PARKED, "CREATE UNIQUE INDEX {t}_other ON {t} (other)",
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_other",
        setup=PLAIN + "ALTER TABLE {t} ADD other bigserial;", words="do(es)? not carry the key"),
    row("replica identity nothing with updates between", COPIED,
        "ALTER TABLE {t} REPLICA IDENTITY NOTHING", CHANGES,
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT", moments=LOOKED_BETWEEN),
    row("replica identity without the key and back", EQUAL,
        "CREATE UNIQUE INDEX {t}_other ON {t} (other)",
        "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_other", CHANGES,
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        setup=PLAIN + "ALTER TABLE {t} ADD other bigserial;"),
    row("full without a key and back to a key", EQUAL, "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        CHANGES, "ALTER TABLE {t} ADD PRIMARY KEY (id)", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        setup=PLAIN + "ALTER TABLE {t} REPLICA IDENTITY FULL;"),
)  # fmt: skip

NAMES = (
    row("rename a table", EQUAL, "ALTER TABLE {t} RENAME TO {t}_new",
        after=AFTER.replace("{t}", "{t}_new"), tables=("{t}_new",), first=("{t}",), at={}),
    row("rename a table nothing written", EQUAL, "ALTER TABLE {t} RENAME TO {t}_new", after="",
        tables=("{t}_new",), first=("{t}",)),
    harmless("rename a table there and back", "ALTER TABLE {t} RENAME TO {t}_new",
        CHANGES.replace("{t}", "{t}_new"), "ALTER TABLE {t}_new RENAME TO {t}",
        at={Moment.SEVERAL_POLLS: EQUAL}),
    row("set schema", EQUAL, "ALTER TABLE {t} SET SCHEMA {t}_s",
        setup=PLAIN + "CREATE SCHEMA {t}_s;", after=AFTER.replace("{t}", "{t}_s.{t}"),
        tables=("{t}_s.{t}",), first=("{t}",)),
    harmless("set schema there and back", "ALTER TABLE {t} SET SCHEMA {t}_s",
        CHANGES.replace("{t}", "{t}_s.{t}"), "ALTER TABLE {t}_s.{t} SET SCHEMA public",
        setup=PLAIN + "CREATE SCHEMA {t}_s;", at={Moment.SEVERAL_POLLS: EQUAL}),
    harmless("rename a schema there and back", "ALTER SCHEMA {t}_s RENAME TO {t}_z",
        "ALTER SCHEMA {t}_z RENAME TO {t}_s", setup=IN_SCHEMA,
        before=BEFORE.replace("{t}", "{t}_s.{t}"), after=AFTER.replace("{t}", "{t}_s.{t}"),
        tables=("{t}_s.{t}",), at={Moment.SEVERAL_POLLS: EQUAL}),
    row("swap of an online migration", EQUAL,
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_old; ALTER TABLE {t}_new RENAME TO {t}; COMMIT",
        setup=PLAIN + PLAIN.replace("{t}", "{t}_new") + "UPDATE {t}_new SET b = 'new';",
        after=AFTER + CHANGES.replace("{t}", "{t}_old"), tables=("{t}", "{t}_old"),
        first=("{t}", "{t}_new"), moments=OUTSIDE_TRANSACTIONS),
    row("swap of two tables", EQUAL,
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_tmp; ALTER TABLE {t}_new RENAME TO {t}; ALTER "
        "TABLE {t}_tmp RENAME TO {t}_new; COMMIT",
        setup=PLAIN + PLAIN.replace("{t}", "{t}_new") + "UPDATE {t}_new SET b = 'new';",
        after=AFTER + CHANGES.replace("{t}", "{t}_new"), tables=("{t}", "{t}_new"),
        moments=OUTSIDE_TRANSACTIONS),
    row("swap of two tables there and back", EQUAL,
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_tmp; ALTER TABLE {t}_new RENAME TO {t}; ALTER "
        "TABLE {t}_tmp RENAME TO {t}_new; COMMIT", CHANGES + CHANGES.replace("{t}", "{t}_new"),
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_tmp; ALTER TABLE {t}_new RENAME TO {t}; ALTER "
        "TABLE {t}_tmp RENAME TO {t}_new; COMMIT",
        setup=PLAIN + PLAIN.replace("{t}", "{t}_new") + "UPDATE {t}_new SET b = 'new';",
        tables=("{t}", "{t}_new"), moments=OUTSIDE_TRANSACTIONS),
    row("rename and another table under the old name", EQUAL, "ALTER TABLE {t} RENAME TO {t}_old",
        "CREATE TABLE {t} (id int PRIMARY KEY, w text)",
        "INSERT INTO {t} SELECT i, 'w' FROM generate_series(1, 9) i",
        after="UPDATE {t} SET w = 'x' WHERE id = 1; UPDATE {t}_old SET a = 0 WHERE id = 2",
        tables=("{t}", "{t}_old"), first=("{t}",)),
)  # fmt: skip

TABLES = (
    row("create a table", COPIED, PLAIN, setup="", before="", at={Moment.ROLLED_BACK: NOTHING},
        moments=OUTSIDE_TRANSACTIONS | IN_TRANSACTIONS),
    row("create a table as", COPIED, "CREATE TABLE {t} AS SELECT 1 AS id, 2 AS a, 'x' AS b",
        setup="", before="", after=MORE_INSERTS, moments=OUTSIDE_TRANSACTIONS | IN_TRANSACTIONS),
    row("create an unlogged table", NOTHING, "CREATE UNLOGGED TABLE {t} (id int PRIMARY KEY)",
        setup="", before="", after="INSERT INTO {t} VALUES (1)", tables=(), absent=("{t}",)),
    row("create a temporary table", NOTHING,
        "CREATE TEMP TABLE {t}_temp (id int PRIMARY KEY); INSERT INTO {t}_temp VALUES (1)",
        absent=("{t}_temp",), moments=frozenset(Moment) - {Moment.PREPARED}),
    row("drop a table", NOTHING, "DROP TABLE {t}", before="", after="", tables=(), first=("{t}",),
        standing={"{t}": INSERTED}),
    row("drop a table cascade", NOTHING, "DROP TABLE {t}_other CASCADE",
        setup=REFERENCED + "ALTER TABLE {t} ADD CONSTRAINT {t}_f FOREIGN KEY (id) REFERENCES "
        "{t}_other;", standing={"{t}_other": 200}),
    row("drop and create under its name", COPIED, "DROP TABLE {t}", PLAIN.replace("'b'", "'new'")),
    row("drop and create with other columns", COPIED, "DROP TABLE {t}",
        "CREATE TABLE {t} (k text PRIMARY KEY, w int)",
        "INSERT INTO {t} SELECT 'k' || i, i FROM generate_series(1, 9) i",
        after="UPDATE {t} SET w = 0 WHERE k = 'k1'"),
    row("drop and create in one transaction", COPIED,
        "BEGIN; DROP TABLE {t};" + PLAIN.replace("'b'", "'new'") + "COMMIT",
        moments=OUTSIDE_TRANSACTIONS),
    row("drop and create while others write", COPIED,
        "BEGIN; DROP TABLE {t};" + PLAIN.replace("'b'", "'new'") + "COMMIT",
        load="INSERT INTO {t} (id) SELECT greatest(max(id), 1000) + 1 FROM {t}",
        moments=OUTSIDE_TRANSACTIONS),
    row("drop schema cascade", NOTHING, "DROP SCHEMA {t}_s CASCADE", setup=IN_SCHEMA, before="",
        after="", tables=(), first=("{t}_s.{t}",), standing={"{t}_s.{t}": INSERTED}),
    harmless("truncate", "TRUNCATE {t}"),
    harmless("truncate and fill", "TRUNCATE {t}; INSERT INTO {t} VALUES (1, 1, 'n'), (2, 2, 'n')"),
    harmless("truncate restart identity", "TRUNCATE {t} RESTART IDENTITY"),
    harmless("truncate cascade", "TRUNCATE {t}_other CASCADE",
        setup=REFERENCED + "ALTER TABLE {t} ADD CONSTRAINT {t}_f FOREIGN KEY (id) REFERENCES "
        "{t}_other;", after="INSERT INTO {t}_other VALUES (1); INSERT INTO {t} VALUES (1, 1, 'n')",
        tables=("{t}", "{t}_other")),
    harmless("truncate two tables", "TRUNCATE {t}, {t}_other", setup=REFERENCED,
        tables=("{t}", "{t}_other")),
    harmless("truncate a table without a key", "TRUNCATE {t}", setup=NO_KEY, before=INSERTS,
        after=MORE_INSERTS),
    row("truncate and a new column", ADDED, "TRUNCATE {t}", "ALTER TABLE {t} ADD c int DEFAULT 7"),
    row("add a default and truncate", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        "UPDATE {t} SET b = 'y' WHERE id IN (6, 7)", "TRUNCATE {t}"),
    harmless("inherit", "CREATE TABLE {t}_child (c int) INHERITS ({t})",
        "INSERT INTO {t}_child (id, a) VALUES (900, 1)", "ALTER TABLE {t}_child NO INHERIT {t}",
        "ALTER TABLE {t}_child INHERIT {t}"),
    harmless("a child and no child any more", "CREATE TABLE {t}_child () INHERITS ({t})",
        "ALTER TABLE {t}_child NO INHERIT {t}", "DROP TABLE {t}_child"),
    harmless("truncate only an inheritance parent", "TRUNCATE ONLY {t}",
        setup=PLAIN + "CREATE TABLE {t}_child (PRIMARY KEY (id)) INHERITS ({t});INSERT INTO "
        "{t}_child (id) VALUES (900);", tables=("{t}", "{t}_child")),
    harmless("truncate an inheritance parent", "TRUNCATE {t}",
        setup=PLAIN + "CREATE TABLE {t}_child (PRIMARY KEY (id)) INHERITS ({t});INSERT INTO "
        "{t}_child (id) VALUES (900);", tables=("{t}", "{t}_child")),
    row("add a column to an inheritance parent", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        setup=PLAIN + "CREATE TABLE {t}_child (PRIMARY KEY (id)) INHERITS ({t});INSERT INTO "
        "{t}_child (id) VALUES (900);", tables=("{t}", "{t}_child")),
)  # fmt: skip

_OWN_LEAF_ATTACHED = PARTS + LATER_PART + ATTACH + ";"
PARTITIONS = (
    harmless("new partition",
        "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)",
        "INSERT INTO {t} (id) VALUES (5001), (5002)", setup=PARTS, is_by_leaf=True),
    harmless("new default partition", "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT",
        "INSERT INTO {t} (id) VALUES (5001), (5002)", setup=PARTS, is_by_leaf=True),
    harmless("new partition below a mid level", NEW_PART_BELOW,
        "UPDATE {t} SET id = id + 1 WHERE id = 2900", setup=PARTS, is_by_leaf=True),
    row("attach a table with rows", EQUAL, ATTACH, setup=PARTS + LATER_PART),
    row("attach a table with rows nothing written", EQUAL, ATTACH, setup=PARTS + LATER_PART,
        after=""),
    row("attach made and filled in one transaction", REPLACED,
        "BEGIN;" + LATER_PART + ATTACH + "; COMMIT", setup=PARTS, moments=OUTSIDE_TRANSACTIONS),
    row("attach made and filled in a savepoint", REPLACED,
        "BEGIN; SAVEPOINT s;" + LATER_PART + "RELEASE s;" + ATTACH + "; COMMIT", setup=PARTS,
        moments=OUTSIDE_TRANSACTIONS),
    row("attach made then filled in a savepoint", REPLACED,
        "BEGIN;" + LATER_PART.replace("INSERT", "SAVEPOINT s; INSERT") + "RELEASE s;" + ATTACH
        + "; COMMIT", setup=PARTS, moments=OUTSIDE_TRANSACTIONS),
    row("attach made and filled and updated", REPLACED, "BEGIN;" + LATER_PART + ATTACH + "; COMMIT",
        "UPDATE {t} SET b = 'x' WHERE id > 5000", setup=PARTS, moments=OUTSIDE_TRANSACTIONS),
    row("attach a mid level with rows", EQUAL,
        LATER_MID + "INSERT INTO {t}_late SELECT i, i, 'late' FROM generate_series(5000, 5010) i",
        ATTACH, setup=PARTS),
    row("attach a mid level made and filled", REPLACED,
        "BEGIN;" + LATER_MID + "INSERT INTO {t}_late VALUES (5000, 1, 'late');" + ATTACH + "; "
        "COMMIT", setup=PARTS, moments=OUTSIDE_TRANSACTIONS),
    row("new mid level", REPLACED, NEW_PART + " PARTITION BY RANGE (id)",
        "CREATE TABLE {t}_l1 PARTITION OF {t}_late DEFAULT",
        "INSERT INTO {t} (id) VALUES (5001), (5002)", setup=PARTS, is_by_leaf=True,
        at=dict.fromkeys((Moment.SEVERAL_POLLS, Moment.TRANSACTION, Moment.PREPARED), NOTHING)),
    row("attach an empty table", EQUAL, "CREATE TABLE {t}_late (LIKE {t})", ATTACH,
        "INSERT INTO {t} (id) VALUES (5001)", setup=PARTS),
    row("detach", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_late", setup=_OWN_LEAF_ATTACHED),
    row("detach a mid level", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_mid", setup=PARTS),
    row("detach concurrently", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_late CONCURRENTLY",
        setup=_OWN_LEAF_ATTACHED, moments=OUTSIDE_TRANSACTIONS, since=14),
    row("detach concurrently and drop", REPLACED,
        "ALTER TABLE {t} DETACH PARTITION {t}_late CONCURRENTLY", "DROP TABLE {t}_late",
        setup=_OWN_LEAF_ATTACHED, moments=OUTSIDE_TRANSACTIONS, since=14),
    row("detach concurrently interrupted and finalized", REPLACED,
        Interrupted("ALTER TABLE {t} DETACH PARTITION {t}_late CONCURRENTLY"),
        "UPDATE {t}_late SET b = 'apart'", "ALTER TABLE {t} DETACH PARTITION {t}_late FINALIZE",
        setup=_OWN_LEAF_ATTACHED, moments=OUTSIDE_TRANSACTIONS, since=14),
    row("detach and attach elsewhere", COPIED, "ALTER TABLE {t} DETACH PARTITION {t}_late",
        "ALTER TABLE {t}_two ATTACH PARTITION {t}_late FOR VALUES FROM (5000) TO (6000)",
        setup=_OWN_LEAF_ATTACHED + "CREATE TABLE {t}_two (id int PRIMARY KEY, a int, b text) "
        "PARTITION BY RANGE (id);", tables=("{t}", "{t}_two"), first=("{t}",)),
    row("detach and attach", EQUAL, "ALTER TABLE {t} DETACH PARTITION {t}_late", ATTACH,
        setup=_OWN_LEAF_ATTACHED),
    row("detach change and attach", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_late",
        "UPDATE {t}_late SET b = 'apart' WHERE id < 5005; DELETE FROM {t}_late WHERE id = 5006",
        ATTACH, setup=_OWN_LEAF_ATTACHED),
    row("detach truncate and attach", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_late",
        "TRUNCATE {t}_late", ATTACH, setup=_OWN_LEAF_ATTACHED),
    row("detach and attach with another bound", REPLACED,
        "ALTER TABLE {t} DETACH PARTITION {t}_late", "DELETE FROM {t}_late WHERE id < 5005",
        "ALTER TABLE {t} ATTACH PARTITION {t}_late FOR VALUES FROM (5003) TO (7000)",
        "INSERT INTO {t} (id) VALUES (6500)", setup=_OWN_LEAF_ATTACHED),
    row("detach under load", REPLACED, "ALTER TABLE {t} DETACH PARTITION {t}_late",
        setup=_OWN_LEAF_ATTACHED, load="UPDATE {t} SET a = coalesce(a, 0) + 1 WHERE id = 5003",
        moments=OUTSIDE_TRANSACTIONS),
    row("drop a partition", REPLACED, "DROP TABLE {t}_late", setup=_OWN_LEAF_ATTACHED),
    row("drop a partition and make it again", REPLACED, "DROP TABLE {t}_late",
        "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)",
        "INSERT INTO {t} (id) VALUES (5003)", setup=_OWN_LEAF_ATTACHED),
    row("new partition filled and dropped", EQUAL, NEW_PART,
        "INSERT INTO {t} (id) VALUES (5001), (5002)", "DROP TABLE {t}_late", setup=PARTS),
    row("new partition filled detached and attached", EQUAL, NEW_PART,
        "INSERT INTO {t} (id) VALUES (5001), (5002)", "ALTER TABLE {t} DETACH PARTITION {t}_late",
        "DELETE FROM {t}_late WHERE id = 5001", ATTACH, setup=PARTS),
    row("attached filled and dropped", EQUAL, "CREATE TABLE {t}_late (LIKE {t} INCLUDING ALL)",
        ATTACH, "INSERT INTO {t} (id) VALUES (5001), (5002)", "DROP TABLE {t}_late", setup=PARTS),
    row("new mid level filled and detached", EQUAL, NEW_PART + " PARTITION BY RANGE (id)",
        "CREATE TABLE {t}_l1 PARTITION OF {t}_late DEFAULT", "INSERT INTO {t} (id) VALUES (5001)",
        "ALTER TABLE {t} DETACH PARTITION {t}_late", setup=PARTS),
    harmless("rename a partition", "ALTER TABLE {t}_low RENAME TO {t}_lower", setup=PARTS),
    harmless("set schema of a partition", "ALTER TABLE {t}_low SET SCHEMA {t}_s",
        setup=PARTS + "CREATE SCHEMA {t}_s;"),
    harmless("move rows between partitions",
        "UPDATE {t} SET id = id + 1000 WHERE id BETWEEN 6 AND 9", setup=PARTS),
    maintained("vacuum full of a partition", "VACUUM FULL {t}_low", setup=PARTS),
    row("add a column to the root", ADDED, "ALTER TABLE {t} ADD c int", setup=PARTS),
    row("add a constant default to the root", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7",
        setup=PARTS),
    row("add a volatile default to the root", COPIED,
        "ALTER TABLE {t} ADD c float DEFAULT random()", setup=PARTS),
    row("drop a column of the root", NOTHING, "ALTER TABLE {t} DROP a", setup=PARTS),
    row("int times two on the root", COPIED, "ALTER TABLE {t} ALTER a TYPE int USING a * 2",
        setup=PARTS),
    row("attach a leaf with other column numbers", EQUAL,
        "CREATE TABLE {t}_late (x int, b text, a int, id int PRIMARY KEY);ALTER TABLE {t}_late "
        "DROP x; INSERT INTO {t}_late VALUES ('late', 1, 5001)", ATTACH,
        "INSERT INTO {t} VALUES (5002, 2, 'new')", setup=PARTS),
    row("attach a leaf with another missing value", EQUAL, "ALTER TABLE {t} ADD c int DEFAULT 7",
        LATER_PART + "ALTER TABLE {t}_late ADD c int DEFAULT 8", ATTACH, setup=PARTS),
    row("rename the root", EQUAL, "ALTER TABLE {t} RENAME TO {t}_new", setup=PARTS,
        after=AFTER.replace("{t}", "{t}_new"), tables=("{t}_new",), first=("{t}",)),
    harmless("truncate the root", "TRUNCATE {t}", setup=PARTS),
    harmless("truncate a leaf", "TRUNCATE {t}_low", setup=PARTS),
    harmless("truncate a leaf nothing written", "TRUNCATE {t}_low", setup=PARTS, after=""),
    harmless("truncate a mid level", "TRUNCATE {t}_mid", setup=PARTS),
    harmless("truncate a leaf below a mid level", "TRUNCATE {t}_m1", setup=PARTS),
    harmless("truncate a leaf and a new partition", "TRUNCATE {t}_low",
        "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)",
        "INSERT INTO {t} (id) VALUES (5001)", setup=PARTS, is_by_leaf=True),
    harmless("truncate a leaf and fill it", "TRUNCATE {t}_low",
        "INSERT INTO {t} VALUES (1, 1, 'n')", setup=PARTS),
    harmless("truncate leaves of two tables", "TRUNCATE {t}_low, {t}_x1",
        setup=PARTS + "CREATE TABLE {t}_x (id int PRIMARY KEY, b text) PARTITION BY RANGE "
        "(id);CREATE TABLE {t}_x1 PARTITION OF {t}_x FOR VALUES FROM (0) TO (10);CREATE TABLE "
        "{t}_x2 PARTITION OF {t}_x FOR VALUES FROM (10) TO (20);INSERT INTO {t}_x SELECT "
        "generate_series(0, 19);", tables=("{t}", "{t}_x")),
    harmless("truncate a leaf cascade", "TRUNCATE {t}_low CASCADE",
        setup=PARTS + "CREATE TABLE {t}_other (id int PRIMARY KEY REFERENCES {t});INSERT INTO "
        "{t}_other VALUES (1), (1100);", since=12, tables=("{t}", "{t}_other")),
    row("truncate a leaf and drop it", REPLACED, "TRUNCATE {t}_late", "DROP TABLE {t}_late",
        setup=_OWN_LEAF_ATTACHED),
    row("truncate a default partition", EQUAL, "TRUNCATE {t}_rest", NEW_PART,
        "INSERT INTO {t} (id) VALUES (5001), (7001)",
        setup=PARTS + "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT;INSERT INTO {t} (id) "
        "VALUES (5001), (5002), (7001);"),
    row("drop the root and make it again", COPIED, "DROP TABLE {t}", PARTS.replace("'b'", "'new'"),
        setup=PARTS),
    row("a table becomes partitioned", COPIED,
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_low; CREATE TABLE {t} (id int PRIMARY KEY, a int, "
        "b text) PARTITION BY RANGE (id); ALTER TABLE {t} ATTACH PARTITION {t}_low FOR VALUES "
        "FROM (0) TO (1000); COMMIT", moments=OUTSIDE_TRANSACTIONS),
)  # fmt: skip

MOOD = "CREATE TYPE {t}_mood AS ENUM ('sad', 'ok');"
PAIR = "CREATE TYPE {t}_pair AS (x int, y text);"
RENAME_VALUE = "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'"
ADD_ATTRIBUTE = "ALTER TYPE {t}_pair ADD ATTRIBUTE z int"


def of_type(
    name: str, ddl: str, column: str, value: str, made: str, *, partitions: str = ""
) -> Row:
    """A column of a type that changes inside, so that old rows are printed otherwise."""
    parted = " PARTITION BY RANGE (id)" if partitions else ""
    setup = (
        f"{made}CREATE TABLE {{t}} (id int PRIMARY KEY, a {column}, b text){parted};{partitions}"
        f"INSERT INTO {{t}} SELECT i, {value} FROM generate_series(1, 20) i"
    )
    return Row(name, (ddl,), COPIED, setup=setup, before=TYPED_BEFORE)


TYPES = (
    row("enum add a value", NOTHING, "ALTER TYPE {t}_mood ADD VALUE 'happy'",
        "UPDATE {t} SET a = 'happy' WHERE id = 7", setup=ENUM, before=TYPED_BEFORE,
        moments=OUTSIDE_TRANSACTIONS),
    row("enum add a value before", NOTHING, "ALTER TYPE {t}_mood ADD VALUE 'low' BEFORE 'sad'",
        setup=ENUM, before=TYPED_BEFORE),
    row("enum rename a value", COPIED, "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'",
        setup=ENUM, before=TYPED_BEFORE),
    row("enum rename a value nothing written", COPIED,
        "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'", setup=ENUM, before=TYPED_BEFORE,
        after=""),
    row("enum rename a value there and back", EQUAL,
        "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'", "UPDATE {t} SET b = 'x' WHERE id < 9",
        "ALTER TYPE {t}_mood RENAME VALUE 'fine' TO 'ok'", setup=ENUM, before=TYPED_BEFORE),
    row("enum swap two values", COPIED, "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'x'",
        "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'ok'",
        "ALTER TYPE {t}_mood RENAME VALUE 'x' TO 'sad'", setup=ENUM, before=TYPED_BEFORE),
    harmless("enum rename the type", "ALTER TYPE {t}_mood RENAME TO {t}_temper", setup=ENUM,
        before=TYPED_BEFORE),
    harmless("enum set schema", "CREATE SCHEMA {t}_s", "ALTER TYPE {t}_mood SET SCHEMA {t}_s",
        setup=ENUM, before=TYPED_BEFORE),
    harmless("enum owner", "ALTER TYPE {t}_mood OWNER TO pg_monitor", setup=ENUM,
        before=TYPED_BEFORE),
    row("enum array rename a value", COPIED, "ALTER TYPE {t}_mood RENAME VALUE 'ok' TO 'fine'",
        setup="CREATE TYPE {t}_mood AS ENUM ('sad', 'ok');CREATE TABLE {t} (id int PRIMARY KEY, "
        "a {t}_mood[], b text);INSERT INTO {t} SELECT i, '{ok,sad}' FROM generate_series(1, 20) "
        "i", before=TYPED_BEFORE),
    of_type("enum in a composite rename a value", RENAME_VALUE, "{t}_pair",
        "ROW(i, 'ok')::{t}_pair", MOOD + "CREATE TYPE {t}_pair AS (x int, y {t}_mood);"),
    of_type("enum in a domain rename a value", RENAME_VALUE, "{t}_dom", "'ok'",
        MOOD + "CREATE DOMAIN {t}_dom AS {t}_mood;"),
    of_type("enum in a range rename a value", RENAME_VALUE, "{t}_span", "'[sad,ok]'",
        MOOD + "CREATE TYPE {t}_span AS RANGE (SUBTYPE = {t}_mood);"),
    of_type("enum of leaves rename a value", RENAME_VALUE, "{t}_mood", "'ok'", MOOD,
        partitions="CREATE TABLE {t}_low PARTITION OF {t} DEFAULT;"),
    row("enum of the key rename a value", COPIED, RENAME_VALUE,
        setup=MOOD + "CREATE TABLE {t} (a {t}_mood PRIMARY KEY, b text);INSERT INTO {t} VALUES "
        "('ok', 'x')", before="UPDATE {t} SET b = 'before'",
        after="UPDATE {t} SET b = 'after'; INSERT INTO {t} VALUES ('sad', 'n')"),
    of_type("composite in an array add an attribute", ADD_ATTRIBUTE, "{t}_pair[]",
        "ARRAY[ROW(i, 'y')::{t}_pair]", PAIR),
    of_type("composite in a composite add an attribute", ADD_ATTRIBUTE, "{t}_outer",
        "ROW(ROW(i, 'y')::{t}_pair)::{t}_outer", PAIR + "CREATE TYPE {t}_outer AS (p {t}_pair);"),
    of_type("a table's row type as a column gets a column", "ALTER TABLE {t}_other ADD z int",
        "{t}_other", "ROW(i, 'y')::{t}_other",
        "CREATE TABLE {t}_other (x int PRIMARY KEY, y text);"),
    row("typed table gets a column by its type", ADDED,
        "ALTER TYPE {t}_type ADD ATTRIBUTE c int CASCADE",
        setup="CREATE TYPE {t}_type AS (id int, a int, b text);CREATE TABLE {t} OF {t}_type "
        "(PRIMARY KEY (id));INSERT INTO {t} SELECT i, i, 'b' FROM generate_series(1, 20) i"),
    harmless("composite owner and schema", "ALTER TYPE {t}_pair OWNER TO pg_monitor",
        "CREATE SCHEMA {t}_s", "ALTER TYPE {t}_pair SET SCHEMA {t}_s",
        "ALTER TYPE {t}_s.{t}_pair RENAME TO {t}_two", setup=COMPOSITE, before=TYPED_BEFORE),
    harmless("create and drop a type", "CREATE TYPE {t}_x AS ENUM ('a')", "DROP TYPE {t}_x"),
    row("composite add an attribute", COPIED, "ALTER TYPE {t}_pair ADD ATTRIBUTE z int",
        setup=COMPOSITE, before=TYPED_BEFORE),
    row("composite drop an attribute", COPIED, "ALTER TYPE {t}_pair DROP ATTRIBUTE x",
        setup=COMPOSITE, before=TYPED_BEFORE),
    row("composite rename an attribute", EQUAL, "ALTER TYPE {t}_pair RENAME ATTRIBUTE x TO w",
        setup=COMPOSITE, before=TYPED_BEFORE),
    harmless("domain default", "ALTER DOMAIN {t}_whole SET DEFAULT 5",
        "ALTER DOMAIN {t}_whole DROP DEFAULT", setup=DOMAIN),
    harmless("domain constraint",
        "ALTER DOMAIN {t}_whole ADD CONSTRAINT {t}_c CHECK (VALUE < 999) NOT VALID",
        "ALTER DOMAIN {t}_whole VALIDATE CONSTRAINT {t}_c",
        "ALTER DOMAIN {t}_whole RENAME CONSTRAINT {t}_c TO {t}_d",
        "ALTER DOMAIN {t}_whole DROP CONSTRAINT {t}_d", setup=DOMAIN),
    harmless("domain not null", "ALTER DOMAIN {t}_whole SET NOT NULL",
        "ALTER DOMAIN {t}_whole DROP NOT NULL", setup=DOMAIN,
        before="UPDATE {t} SET a = 5 WHERE id = 1"),
    harmless("domain set schema", "CREATE SCHEMA {t}_s", "ALTER DOMAIN {t}_whole SET SCHEMA {t}_s",
        setup=DOMAIN),
    row("drop a domain cascade", NOTHING, "DROP DOMAIN {t}_whole CASCADE", setup=DOMAIN),
    harmless("domain rename", "ALTER DOMAIN {t}_whole RENAME TO {t}_number", setup=DOMAIN),
    harmless("domain owner", "ALTER DOMAIN {t}_whole OWNER TO pg_monitor", setup=DOMAIN),
    row("add a column of a domain with a default", EQUAL,
        "CREATE DOMAIN {t}_seven AS int DEFAULT 7", "ALTER TABLE {t} ADD c {t}_seven"),
    row("add a column of a domain with a default and a check", EQUAL,
        "CREATE DOMAIN {t}_seven AS int DEFAULT 7 CHECK (VALUE > 0)",
        "ALTER TABLE {t} ADD c {t}_seven"),
    row("int to a domain", IN_PLACE, "CREATE DOMAIN {t}_whole AS int",
        "ALTER TABLE {t} ALTER a TYPE {t}_whole"),
    row("drop a type cascade", NOTHING, "DROP TYPE {t}_mood CASCADE", setup=ENUM,
        before=TYPED_BEFORE),
)  # fmt: skip


def published(name: str, expected: Outcome, *ddl: str, **more: Any) -> Row:
    """A row whose publication is the server's and the user's own."""
    setup = more.pop("setup", PLAIN) + more.pop(
        "publication", "CREATE PUBLICATION {t} FOR TABLE {t};"
    )
    more.setdefault("since", _since(" ".join((setup, *ddl))))
    return Row(name, ddl, expected, setup=setup, publisher=Publisher.SERVER, **more)


def _since(text: str) -> int:
    """The first major version that knows such publications."""
    if "publish_generated" in text:
        return 18
    if re.search(r"IN SCHEMA| WHERE \(|TABLE \{t\} \(id", text.replace("CREATE TABLE", "")):
        return 15
    return 13 if "PARTITION" in text or "partition" in text else Row.since


BY_SCHEMA = "CREATE PUBLICATION {t} FOR TABLES IN SCHEMA {t}_s;"


def by_schema(name: str, expected: Outcome, *ddl: str, **more: Any) -> Row:
    """A table that is published by its schema."""
    return published(
        name, expected, *ddl,
        setup=IN_SCHEMA, publication=BY_SCHEMA,
        before=BEFORE.replace("{t}", "{t}_s.{t}"), after=AFTER.replace("{t}", "{t}_s.{t}"),
        tables=("{t}_s.{t}",), **more,
    )  # fmt: skip


MISSING_MEANWHILE = frozenset(
    {Moment.SEVERAL_POLLS, Moment.CAPTURE_ONLY, Moment.PROMOTION, Moment.AFTER_LOCK}
)
"""Others change rows between the statements of a row."""
VIA_ROOT = "CREATE PUBLICATION {t} FOR TABLE {t} WITH (publish_via_partition_root);"
PUBLICATIONS = (
    published("out and in with changes", COPIED, "ALTER PUBLICATION {t} DROP TABLE {t}", CHANGES,
        "ALTER PUBLICATION {t} ADD TABLE {t}"),
    published("out and in", COPIED, "ALTER PUBLICATION {t} DROP TABLE {t}",
        "ALTER PUBLICATION {t} ADD TABLE {t}"),
    published("out and in with changes nothing written", COPIED,
        "ALTER PUBLICATION {t} DROP TABLE {t}", CHANGES, "ALTER PUBLICATION {t} ADD TABLE {t}",
        after=""),
    published("set to another table and back", COPIED, "ALTER PUBLICATION {t} SET TABLE {t}_other",
        CHANGES, "ALTER PUBLICATION {t} SET TABLE {t}", setup=REFERENCED),
    published("set to the same table", NOTHING, "ALTER PUBLICATION {t} SET TABLE {t}"),
    published("set to the same options", VERIFIED,
        "ALTER PUBLICATION {t} SET (publish = 'insert, update, delete, truncate')"),
    published("rename there and back", VERIFIED, "ALTER PUBLICATION {t} RENAME TO {t}_new",
        "ALTER PUBLICATION {t}_new RENAME TO {t}", moments=ALL - MISSING_MEANWHILE),
    # Before 18, the server cannot decode a change from when a publication was missing.
    published("rename there and back seen in between", EQUAL,
        "ALTER PUBLICATION {t} RENAME TO {t}_new", "ALTER PUBLICATION {t}_new RENAME TO {t}",
        moments=MISSING_MEANWHILE, since=18),
    published("dropped with changes and made again", COPIED, "DROP PUBLICATION {t}", CHANGES,
        "CREATE PUBLICATION {t} FOR TABLE {t}", since=18),
    published("actions there and back", COPIED, "ALTER PUBLICATION {t} SET (publish = 'insert')",
        CHANGES, "ALTER PUBLICATION {t} SET (publish = 'insert, update, delete, truncate')"),
    published("actions there and back nothing changed", VERIFIED,
        "ALTER PUBLICATION {t} SET (publish = 'insert')",
        "ALTER PUBLICATION {t} SET (publish = 'insert, update, delete, truncate')",
        at={Moment.SEVERAL_POLLS: EQUAL, Moment.PROMOTION: EQUAL}),
    published("truncate not published there and back", COPIED,
        "ALTER PUBLICATION {t} SET (publish = 'insert, update, delete')", "TRUNCATE {t}",
        "ALTER PUBLICATION {t} SET (publish = 'insert, update, delete, truncate')"),
    published("truncate not published", EQUAL, "TRUNCATE {t}",
        publication="CREATE PUBLICATION {t} FOR TABLE {t} WITH (publish = 'insert, update, "
        "delete');"),
    published("filter there and back", COPIED,
        "ALTER PUBLICATION {t} SET TABLE {t} WHERE (id > 50)",
        "UPDATE {t} SET b = 'changed' WHERE id = 4", "ALTER PUBLICATION {t} SET TABLE {t}"),
    published("a filter that lets all pass", EQUAL,
        "ALTER PUBLICATION {t} SET TABLE {t} WHERE (id > 0)"),
    published("column list there and back", COPIED, "ALTER PUBLICATION {t} SET TABLE {t} (id, a)",
        CHANGES, "ALTER PUBLICATION {t} SET TABLE {t}"),
    published("column list becomes wider", COPIED, "ALTER PUBLICATION {t} SET TABLE {t} (id, a, b)",
        publication="CREATE PUBLICATION {t} FOR TABLE {t} (id, a);", moments=ALL - UNDONE),
    published("add a table", COPIED, "ALTER PUBLICATION {t} ADD TABLE {t}_other", setup=REFERENCED,
        tables=("{t}_other",), first=("{t}",)),
    published("drop a table from the publication", NOTHING,
        "ALTER PUBLICATION {t} DROP TABLE {t}_other", setup=REFERENCED, standing={"{t}_other": 200},
        publication="CREATE PUBLICATION {t} FOR TABLE {t}, {t}_other;"),
    published("a new partition is added to the publication", EQUAL, NEW_PART,
        "INSERT INTO {t} (id) VALUES (5001)", "ALTER PUBLICATION {t} ADD TABLE {t}_late",
        "INSERT INTO {t} (id) VALUES (5002)", setup=PARTS, before="", after="",
        publication="CREATE PUBLICATION {t} FOR TABLE {t}_low, {t}_m1, {t}_m2;"),
    published("dropped and made again in one transaction", COPIED,
        "BEGIN; DROP PUBLICATION {t}; CREATE PUBLICATION {t} FOR TABLE {t}; COMMIT",
        moments=OUTSIDE_TRANSACTIONS),
    published("all options set one by one", EQUAL,
        "ALTER PUBLICATION {t} SET (publish_via_partition_root = true)",
        "ALTER PUBLICATION {t} SET (publish_via_partition_root = false)"),
    published("swap with a table that is not published", EQUAL,
        "BEGIN; ALTER TABLE {t} RENAME TO {t}_old; ALTER TABLE {t}_new RENAME TO {t}; COMMIT",
        setup=PLAIN + PLAIN.replace("{t}", "{t}_new"), before="",
        after=AFTER.replace("{t}", "{t}_old") + "INSERT INTO {t}_old (id) VALUES (102), (103)",
        tables=("{t}_old",), first=("{t}",), standing={"{t}": INSERTED}, absent=("{t}_new",),
        moments=OUTSIDE_TRANSACTIONS),
    published("owner and comment of a publication", NOTHING,
        "ALTER PUBLICATION {t} OWNER TO CURRENT_USER", "COMMENT ON PUBLICATION {t} IS 'x'"),
    published("create and drop another publication", NOTHING,
        "CREATE PUBLICATION {t}_more FOR TABLE {t}", "DROP PUBLICATION {t}_more"),
    published("add the schema of the table", EQUAL,
        "ALTER PUBLICATION {t} ADD TABLES IN SCHEMA {t}_s", setup=PLAIN + "CREATE SCHEMA {t}_s;"),
    by_schema("schema out and in with changes", COPIED,
        "ALTER PUBLICATION {t} DROP TABLES IN SCHEMA {t}_s", CHANGES.replace("{t}", "{t}_s.{t}"),
        "ALTER PUBLICATION {t} ADD TABLES IN SCHEMA {t}_s"),
    by_schema("to another schema and both are published", EQUAL, "CREATE SCHEMA {t}_z",
        "ALTER PUBLICATION {t} ADD TABLES IN SCHEMA {t}_z",
        "ALTER PUBLICATION {t} SET TABLES IN SCHEMA {t}_s"),
    by_schema("out of its schema and back with changes", COPIED,
        "ALTER TABLE {t}_s.{t} SET SCHEMA public", CHANGES,
        "ALTER TABLE public.{t} SET SCHEMA {t}_s"),
    by_schema("out of its schema and back", EQUAL, "ALTER TABLE {t}_s.{t} SET SCHEMA public",
        "ALTER TABLE public.{t} SET SCHEMA {t}_s"),
    by_schema("unlogged and logged with changes", COPIED, "ALTER TABLE {t}_s.{t} SET UNLOGGED",
        CHANGES.replace("{t}", "{t}_s.{t}"), "ALTER TABLE {t}_s.{t} SET LOGGED"),
    by_schema("unlogged and logged", EQUAL, "ALTER TABLE {t}_s.{t} SET UNLOGGED",
        "ALTER TABLE {t}_s.{t} SET LOGGED",
        at=dict.fromkeys((Moment.ONE_POLL, Moment.STOPPED, Moment.CAPTURE_ONLY,
        Moment.TRANSACTION, Moment.PREPARED), VERIFIED)),
    by_schema("vacuum full of a table published by schema", NOTHING, "VACUUM FULL {t}_s.{t}",
        moments=OUTSIDE_TRANSACTIONS),
    published("new table in a published schema", COPIED, PLAIN.replace("{t}", "{t}_s.{t}_more"),
        setup="CREATE SCHEMA {t}_s;", publication=BY_SCHEMA, before="",
        after="INSERT INTO {t}_s.{t}_more (id) VALUES (101)", tables=("{t}_s.{t}_more",),
        moments=OUTSIDE_TRANSACTIONS | IN_TRANSACTIONS),
    published("set unlogged is refused", NOTHING,
        "DO $$ BEGIN ALTER TABLE {t} SET UNLOGGED; EXCEPTION WHEN OTHERS THEN NULL; END $$"),
    published("via root truncate the root", REPLACED, "TRUNCATE {t}", setup=PARTS,
        publication=VIA_ROOT),
    published("via root truncate a leaf", REPLACED, "TRUNCATE {t}_low", setup=PARTS,
        publication=VIA_ROOT),
    published("via root truncate a leaf nothing written", REPLACED, "TRUNCATE {t}_low", setup=PARTS,
        publication=VIA_ROOT, after=""),
    published("via root truncate a mid level", REPLACED, "TRUNCATE {t}_mid", setup=PARTS,
        publication=VIA_ROOT),
    published("via root truncate a leaf and a new partition", REPLACED, "TRUNCATE {t}_low",
        "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)",
        "INSERT INTO {t} (id) VALUES (5001)", setup=PARTS, publication=VIA_ROOT),
    published("via root detach change and attach", REPLACED,
        "ALTER TABLE {t} DETACH PARTITION {t}_late", "UPDATE {t}_late SET b = 'apart'", ATTACH,
        setup=_OWN_LEAF_ATTACHED, publication=VIA_ROOT),
    published("via root new partition filled and dropped", EQUAL, NEW_PART,
        "INSERT INTO {t} (id) VALUES (5001), (5002)", "DROP TABLE {t}_late", setup=PARTS,
        publication=VIA_ROOT),
    published("drop a partition that is listed itself", REPLACED, "DROP TABLE {t}_low", setup=PARTS,
        after="INSERT INTO {t} (id) VALUES (1001)",
        publication="CREATE PUBLICATION {t} FOR TABLE {t}_low, {t}_m1, {t}_m2;"),
    published("drop partitions of a published schema", REPLACED, "DROP TABLE {t}_s.{t}_mid",
        setup="CREATE SCHEMA {t}_s;" + PARTS.replace("{t}", "{t}_s.{t}"), publication=BY_SCHEMA,
        before="INSERT INTO {t}_s.{t} (id) VALUES (1001)",
        after="INSERT INTO {t}_s.{t} (id) VALUES (100)", tables=("{t}_s.{t}",)),
    published("via root vacuum full of a leaf", VERIFIED, "VACUUM FULL {t}_low", setup=PARTS,
        publication=VIA_ROOT, moments=OUTSIDE_TRANSACTIONS),
    published("via root there and back", EQUAL,
        "ALTER PUBLICATION {t} SET (publish_via_partition_root = true)", CHANGES,
        "ALTER PUBLICATION {t} SET (publish_via_partition_root = false)", setup=PARTS),
    published("via root from now on", EQUAL,
        "ALTER PUBLICATION {t} SET (publish_via_partition_root = true)", setup=PARTS),
    published("publish generated columns", COPIED,
        "ALTER PUBLICATION {t} SET (publish_generated_columns = stored)", setup=GENERATED),
    published("a mid level via root", REPLACED,
        "UPDATE {t} SET b = 'x' WHERE id = 1100; DELETE FROM {t} WHERE id = 1200",
        "TRUNCATE {t}_mid", NEW_PART_BELOW, "INSERT INTO {t} (id) VALUES (2999), (1001)",
        setup=PARTS, tables=("{t}_mid",), absent=("{t}",), before="", after="",
        publication="CREATE PUBLICATION {t} FOR TABLE {t}_mid WITH (publish_via_partition_root);"),
)  # fmt: skip


def ours(name: str, expected: Outcome, *ddl: str, **more: Any) -> Row:
    """A row whose table a publication of pgsluice's own chooses."""
    more.setdefault(
        "statement",
        "CREATE PUBLICATION {t} FOR TABLE {t} WITH (publish_via_partition_root = true)",
    )
    return Row(name, ddl, expected, setup=PARTS, publisher=Publisher.OURS, **more)


OURS = (
    ours("ours via root truncate the root", REPLACED, "TRUNCATE {t}"),
    ours("ours via root truncate a leaf", EQUAL, "TRUNCATE {t}_low"),
    ours("ours via root truncate a leaf nothing written", EQUAL, "TRUNCATE {t}_low", after=""),
    ours("ours via root truncate a mid level", EQUAL, "TRUNCATE {t}_mid"),
    ours("ours via root truncate a leaf and a new partition", EQUAL, "TRUNCATE {t}_low",
        "CREATE TABLE {t}_late PARTITION OF {t} FOR VALUES FROM (5000) TO (6000)",
        "INSERT INTO {t} (id) VALUES (5001)"),
    ours("ours by leaf detach change and attach", COPIED,
        "ALTER TABLE {t} DETACH PARTITION {t}_low", "UPDATE {t}_low SET b = 'apart' WHERE id > 5",
        "ALTER TABLE {t} ATTACH PARTITION {t}_low FOR VALUES FROM (0) TO (1000)",
        tables=("{t}_low",), absent=("{t}",),
        statement="CREATE PUBLICATION {t} FOR TABLE {t} WITH (publish_via_partition_root = false)"),
    ours("ours via root add a default", ADDED, "ALTER TABLE {t} ADD c int DEFAULT 7"),
)  # fmt: skip

ROWS = (
    *COLUMNS, *CONSTRAINTS_AND_STORAGE, *KEYS, *NAMES, *TABLES, *PARTITIONS, *TYPES,
    *PUBLICATIONS, *OURS,
)  # fmt: skip
