"""Tables of every kind of identity under publications of our own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipeline.own_publications import lake, publishing
from tests.support.databases import MakeDatabase, Servers
from tests.support.pipeline import MakePipeline

pytestmark = pytest.mark.usefixtures("spark")

TABLES = """
CREATE TABLE no_key (a int, b int);
CREATE TABLE whole (a int PRIMARY KEY, b int);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int, a int NOT NULL UNIQUE, b int);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a_key;
CREATE TABLE listed (id int PRIMARY KEY, v text, secret text);
CREATE TABLE inserted (id int PRIMARY KEY, v int);
"""
STATEMENTS = """
CREATE PUBLICATION p FOR TABLE
    no_key (a) WHERE (b > 5), whole WHERE (b > 5), by_index WHERE (a > 5), listed (v, id);
CREATE PUBLICATION q FOR TABLE inserted (v) WHERE (v > 5) WITH (publish = 'insert');
"""
BEFORE = """
INSERT INTO no_key VALUES (1, 1), (2, 9), (2, 9);
INSERT INTO whole VALUES (1, 1), (2, 9), (3, 9);
INSERT INTO by_index VALUES (1, 1, 1), (2, 9, 1), (3, 8, 1);
INSERT INTO listed VALUES (1, 'a', 'x'), (2, 'b', 'y');
INSERT INTO inserted VALUES (1, 1), (2, 9);
"""
AFTER = """
INSERT INTO no_key VALUES (3, 1), (4, NULL), (5, 7);
UPDATE whole SET b = 1 WHERE a = 2;
UPDATE whole SET b = 8 WHERE a = 1;
UPDATE whole SET b = 6, a = 7 WHERE a = 3;
INSERT INTO whole VALUES (4, 10), (5, NULL);
DELETE FROM whole WHERE b = 1;
UPDATE by_index SET a = 10 WHERE id = 1;
UPDATE by_index SET a = 2 WHERE id = 2;
UPDATE by_index SET b = 5 WHERE id = 3;
UPDATE listed SET secret = 'z' WHERE id = 1;
UPDATE listed SET id = 20, v = 'c' WHERE id = 2;
INSERT INTO inserted VALUES (3, 3), (4, 8);
UPDATE inserted SET v = 100 WHERE id = 1;
DELETE FROM inserted WHERE id = 2;
"""


@pytest.mark.parametrize(("version", "binary"), [(18, True), (12, False)], ids=["18 binary", "12"])
def test_identities_lists_and_actions(
    version: int, binary: bool, servers: Servers, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database(servers(version))
    shop.execute(TABLES, BEFORE)
    one = pipeline(shop, source="binary = true" if binary else "")
    publishing(one, STATEMENTS, all=None, some=("p", "q"))
    one.once()
    shop.execute(AFTER)
    one.once()

    def some(table: str) -> list[Any]:
        return lake(one, "some", table)

    assert some("no_key") == [(2,), (2,), (5,)]
    assert some("whole") == [(1, 8), (4, 10), (7, 6)]
    assert some("by_index") == [(1, 10, 1), (3, 8, 5)]
    assert some("listed") == [(1, "a"), (20, "c")]
    assert some("inserted") == [(8,), (9,)]
    one.assert_equal("whole", "by_index", "listed", "inserted", lake="all")
