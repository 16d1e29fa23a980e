"""Tables, and publications of them.

``p`` is of nothing; ``all_of_it`` of all tables; ``part`` of t1 with a filter and t2 with columns;
``s`` of a schema; ``rooted`` of the partitioned table with a filter, by its root.
"""

SETUP = '''
CREATE TABLE t1 (a int, b int, c text, PRIMARY KEY (a, c));
CREATE TABLE t2 (d int PRIMARY KEY, e int, f int);
CREATE TABLE t3 (g int PRIMARY KEY, h int GENERATED ALWAYS AS (g * 2) STORED,
                 v int GENERATED ALWAYS AS (g * 3));
CREATE TABLE "Odd ""name""" ("A b" int PRIMARY KEY, "select" int, "ü" text);
CREATE TABLE parent (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE TABLE child PARTITION OF parent DEFAULT;
CREATE TABLE base (i int PRIMARY KEY, j int);
CREATE TABLE derived (k int) INHERITS (base);
CREATE TABLE derived2 () INHERITS (derived);
CREATE SCHEMA sch;
CREATE SCHEMA "Big One";
CREATE TABLE sch.t1 (x int PRIMARY KEY, y text);
CREATE TABLE sch.tables (x int);
CREATE VIEW v AS SELECT 1 AS a;
CREATE MATERIALIZED VIEW mv AS SELECT 1 AS a;
CREATE SEQUENCE seq;
CREATE TYPE comp AS (a int);
CREATE UNLOGGED TABLE unlogged (a int);
CREATE INDEX t1_b ON t1 (b);
CREATE INDEX parent_b ON parent (b);
CREATE FOREIGN DATA WRAPPER fdw;
CREATE SERVER srv FOREIGN DATA WRAPPER fdw;
CREATE FOREIGN TABLE ft (a int) SERVER srv;
'''

PUBLICATIONS = """
CREATE PUBLICATION p;
CREATE PUBLICATION all_of_it FOR ALL TABLES;
CREATE PUBLICATION part FOR TABLE t1 WHERE (a > 5), t2 (d, e);
CREATE PUBLICATION s FOR TABLES IN SCHEMA sch;
CREATE PUBLICATION rooted FOR TABLE parent WHERE (a < 5) WITH (publish_via_partition_root);
CREATE PUBLICATION rooted_columns FOR TABLE parent (a) WITH (publish_via_partition_root = on);
"""
