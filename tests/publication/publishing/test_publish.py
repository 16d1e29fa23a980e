"""How our publications change what is sent: PostgreSQL 18's own publications are the oracle.

The random part (:mod:`tests.publication.publish_cases`) compares message for message;
``make soak AREA=publications`` runs many more. What no server can show is tested by hand.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from tests.publication.native import UNCHANGED, encoded
from tests.publication.publication_stream import Stream, plain
from tests.publication.publish_cases import Compared
from tests.support.databases import Database, fresh_database

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import EvaluationError, TableError
from pgsluice.publication import Publisher, load_publications, publish_all

MakeDatabase = Callable[..., Database]
FILTERS = 80


def test_the_same_changes_are_published_as_by_the_server(pg18: EmbeddedServer) -> None:
    compared = Compared()
    for seed, tame in ((20240301, False), (20240302, True)):
        with fresh_database(pg18) as database:
            compared.add(database.dsn, seed, FILTERS, tame)
    compared.check()


# Examples by hand


_ITEMS = "CREATE TABLE items (id int PRIMARY KEY, n int, note text)"


def test_an_error_names_its_change(database: MakeDatabase) -> None:
    stream = Stream(
        database(),
        _ITEMS,
        "INSERT INTO items VALUES (5, 1, 'secret'), (3, 2, 'secret')",
        "DELETE FROM items WHERE id = 3",
        "INSERT INTO items VALUES (7, 0, 'secret')",
    )
    # The DELETE's filter fails for an earlier change than the INSERT's.
    publications = """
        CREATE PUBLICATION a FOR TABLE items WHERE (10 / n > 0) WITH (publish = 'insert');
        CREATE PUBLICATION b FOR TABLE items WHERE (10 / (id - 3) > 0)
            WITH (publish = 'update, delete');
    """
    with pytest.raises(EvaluationError) as caught:
        stream.published(publications)
    error = caught.value
    assert error.condition == "division_by_zero"
    assert (error.table, error.key_columns) == ("public.items", ("id",))
    _, (run,) = stream.decode()
    assert error.lsn == run.positions[2]
    assert error.ordinal == run.ordinals[2]
    assert "table public.items (key columns: id): the row filter failed: division by zero" in str(
        error
    )
    assert str(error.lsn) in str(error)
    assert "secret" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_filter_that_cannot_be_planned_fails_with_the_tables_first_change(
    database: MakeDatabase,
) -> None:
    """The server computes constants at the first change, here one without a filter."""
    stream = Stream(database(), _ITEMS, "INSERT INTO items VALUES (5, 1, 'x')")
    publication = "CREATE PUBLICATION p FOR TABLE items WHERE (id = 1 / 0)"
    with pytest.raises(EvaluationError, match="division by zero, in change"):
        stream.published(f"{publication} WITH (publish = 'update')")


def test_the_replica_identity_in_force_has_to_hold_the_filters_columns(
    database: MakeDatabase,
) -> None:
    publication = "CREATE PUBLICATION p FOR TABLE items WHERE (n > 1)"
    stream = Stream(database(), _ITEMS, "INSERT INTO items VALUES (1, 2, '')")
    assert [change.action for change in stream.sent(publication)] == ["I"]

    stream.database.execute("UPDATE items SET note = 'x'")
    with pytest.raises(TableError) as caught:
        stream.published(publication)
    assert caught.value.what == 'cannot update table "items"'
    assert caught.value.details[0] == (
        "DETAIL:  Column used in the publication WHERE expression is not part of the replica"
        " identity."
    )
    assert caught.value.table == "public.items"
    # A publication that does not publish the action is not concerned.
    assert len(stream.sent(f"{publication} WITH (publish = 'insert, truncate')")) == 1

    stream.database.execute("DELETE FROM items")
    with pytest.raises(TableError, match='cannot delete from table "items"'):
        stream.published(f"{publication} WITH (publish = 'insert, delete')")


def test_a_column_list_has_to_cover_the_replica_identity(database: MakeDatabase) -> None:
    stream = Stream(
        database(), _ITEMS, "INSERT INTO items VALUES (1, 2, '')", "UPDATE items SET n = 3"
    )
    with pytest.raises(TableError, match="Column list used by the publication does not cover"):
        stream.published("CREATE PUBLICATION p FOR TABLE items (n)")
    (run,) = stream.published("CREATE PUBLICATION p FOR TABLE items (n) WITH (publish = insert)")
    assert (run.schema.names, run.facts and run.facts.primary_key) == (["n"], ())
    assert [change.new for change in encoded([run])] == [(("n", "2"),)]


@pytest.mark.pg(">= 14")
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("numeric", ["string", "double", "decimal(6,2)"])
def test_values_that_their_arrow_type_cannot_hold_are_filtered_exactly(
    database: MakeDatabase, binary: bool, numeric: str
) -> None:
    stream = Stream(
        database(),
        "CREATE TABLE odd (id int PRIMARY KEY, d date, n numeric, a int[], r int4range)",
        "INSERT INTO odd VALUES (1, 'infinity', '0.10000000000000000001', '{1}', '[1,3)'),"
        " (2, '2024-01-01', 'NaN', '{{1,2},{3,4}}', 'empty'), (3, '-infinity', '1e30', '{}', NULL)",
    )

    def keys(condition: str) -> list[str | None]:
        publication = f"CREATE PUBLICATION p FOR TABLE odd WHERE ({condition})"
        sent = stream.sent(f"{publication} WITH (publish = insert)", binary=binary, numeric=numeric)
        return [dict(change.new or ())["id"] for change in sent]

    assert keys("d = 'infinity'") == ["1"]
    assert keys("d < '2000-01-01'") == ["3"]
    assert keys("n > 0.1") == ["1", "2", "3"]
    assert keys("n < 0.10000000000000000002") == ["1"]
    assert keys("a @> '{4}'::int[]") == ["2"]
    assert keys("isempty(r) OR r IS NULL") == ["2", "3"]


@pytest.mark.pg(">= 11")  # toast_tuple_target
def test_an_insert_that_was_an_update_takes_unchanged_values_from_the_old_row(
    database: MakeDatabase,
) -> None:
    stream = Stream(
        database(),
        "CREATE TABLE wide (id int, k text, body text, PRIMARY KEY (id, k));"
        "ALTER TABLE wide ALTER k SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL;"
        "ALTER TABLE wide SET (toast_tuple_target = 128)",
        "INSERT INTO wide VALUES (1, repeat('k', 200), repeat('b', 3000))",
        "UPDATE wide SET id = 11",
    )
    publication = "CREATE PUBLICATION p FOR TABLE wide WHERE (id > 10)"
    (run,) = stream.published(publication)
    assert run.ordinals.tolist() == [stream.decode()[1][0].ordinals[1]]
    assert plain(encoded([run])) == [
        ("public.wide", "I", None, {"id": "11", "k": "k" * 200, "body": UNCHANGED})
    ]
    assert {column_index: mask.tolist() for column_index, mask in run.new.absent.items()} == {
        2: [True]
    }

    stream.database.execute("ALTER TABLE wide REPLICA IDENTITY FULL", "UPDATE wide SET id = 5")
    stream.database.execute("UPDATE wide SET id = 12")
    last = stream.sent(publication)[-1]
    assert dict(last.new or ()) == {"id": "12", "k": "k" * 200, "body": "b" * 3000}


_PARTS = """
CREATE TABLE root (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE low (n int, id int NOT NULL);
ALTER TABLE root ATTACH PARTITION low FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF root DEFAULT;
"""
_VIA_ROOT = (
    "CREATE PUBLICATION p FOR TABLE root WHERE (id % 2 = 0) WITH (publish_via_partition_root)"
)


@pytest.mark.pg(">= 13")
@pytest.mark.parametrize("via_root", [False, True], ids=["leaves", "root"])
def test_a_partition_is_published_as_its_root(database: MakeDatabase, via_root: bool) -> None:
    stream = Stream(
        database(),
        _PARTS,
        "INSERT INTO root VALUES (1, 1), (2, 2), (12, 12)",
        "UPDATE root SET n = 0 WHERE id = 2",
        "TRUNCATE low",
        "TRUNCATE root",
        "INSERT INTO root VALUES (4, 4)",
        via_root=via_root,
    )
    runs = stream.published(_VIA_ROOT)
    catalog, _ = stream.decode()
    root = catalog.table("public", "root")
    assert root is not None
    for run in runs:
        assert (run.relation.oid, run.relation.name) == (root.oid, "root")
        assert run.facts is not None
        assert (run.facts.oid, run.facts.root_oid, run.facts.root_name) == (
            root.oid,
            root.oid,
            "root",
        )
        assert run.schema.names == ["id", "n"]
    # A partition's TRUNCATE is not sent, the root's is.
    assert plain(encoded(runs)) == [
        ("public.root", "I", None, {"id": "2", "n": "2"}),
        ("public.root", "I", None, {"id": "12", "n": "12"}),
        ("public.root", "U", None, {"id": "2", "n": "0"}),
        ("public.root", "T", None, None),
        ("public.root", "I", None, {"id": "4", "n": "4"}),
    ]


@pytest.mark.pg(">= 11")  # keys of partitioned tables, TRUNCATE on the wire
def test_a_partition_published_as_itself_is_a_table_of_its_own(database: MakeDatabase) -> None:
    stream = Stream(database(), _PARTS, "INSERT INTO root VALUES (1, 1), (12, 2)", "TRUNCATE low")
    runs = stream.published("CREATE PUBLICATION p FOR TABLE root, low WHERE (id > 0)")
    assert {run.relation.name: run.facts and run.facts.root_name for run in runs} == {
        "low": "low",
        "high": "high",
    }
    assert [(change.relation, change.action) for change in encoded(runs)] == [
        ("public.low", "I"),
        ("public.high", "I"),
        ("public.low", "T"),
    ]


@pytest.mark.pg("== 16")
def test_a_filter_column_that_the_server_does_not_send(database: MakeDatabase) -> None:
    """Only 18 sends generated columns."""
    stream = Stream(
        database(),
        "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO g VALUES (1)",
    )
    publication = "CREATE PUBLICATION p FOR TABLE g WHERE (twice > 1) WITH (publish = insert)"
    with pytest.raises(TableError, match="reads column 'twice', which the server's"):
        stream.published(publication)


def test_arrays_are_not_copied_if_nothing_is_filtered(database: MakeDatabase) -> None:
    stream = Stream(database(), _ITEMS, "INSERT INTO items VALUES (1, 2, 'x'), (2, NULL, NULL)")
    catalog, (run,) = stream.decode()
    given = list(load_publications("CREATE PUBLICATION p FOR ALL TABLES", catalog))
    publisher = Publisher.of(given, catalog.tables[run.relation.oid], catalog)
    assert publisher is not None
    assert publisher.filter_columns == frozenset()
    published = publisher.publish(run)
    assert all(
        column is original
        for column, original in zip(published.new.columns, run.new.columns, strict=True)
    )
    assert published.schema == run.schema
    assert pa.types.is_int32(published.schema.field("n").type)
    assert np.array_equal(published.actions, run.actions)


def test_a_table_without_a_publication_has_no_publisher(database: MakeDatabase) -> None:
    stream = Stream(database(), _ITEMS, "INSERT INTO items VALUES (1, 2, 'x')")
    catalog, (run,) = stream.decode()
    assert Publisher.of([], catalog.tables[run.relation.oid], catalog) is None
    assert publish_all({}, [run]) == []
