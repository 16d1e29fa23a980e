"""Keys that two rows share: nothing is deleted, and the table is parked with their number."""

from __future__ import annotations

import re

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.oracle import count_rows
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.errors import TablesUnfinished
from pgsluice.sinks.lake.copied_rows import refuse_shared_keys

KEYS = """key = {
    "public.shared" = ["device"], "public.later" = ["device"], "public.earlier" = ["device"],
    "public.parts" = ["id"], "public.proved" = ["a", "b"], "public.swapped" = ["id"] }
"""
TABLES = """
CREATE TABLE shared (device int NOT NULL, n int);
CREATE TABLE later (LIKE shared);
CREATE TABLE earlier (LIKE shared);
CREATE TABLE proved (a int NOT NULL UNIQUE, b int, n int);
CREATE TABLE swapped (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, n int);
CREATE TABLE parts (id int NOT NULL, p int NOT NULL) PARTITION BY LIST (p);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
ALTER TABLE parts_1 ADD UNIQUE (id);
ALTER TABLE parts_2 ADD UNIQUE (id);
INSERT INTO shared SELECT i % 5000, i FROM generate_series(1, 10000) i;
INSERT INTO earlier SELECT i % 5000, i FROM generate_series(1, 10000) i;
INSERT INTO later SELECT i, i FROM generate_series(1, 10000) i;
INSERT INTO proved SELECT i, i % 10, i FROM generate_series(1, 10000) i;
INSERT INTO swapped SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO parts SELECT i, 1 + i % 2 FROM generate_series(1, 100) i;
INSERT INTO parts VALUES (7, 1), (9, 1);
"""
NAMES = ("shared", "later", "earlier", "proved", "swapped", "parts_1", "parts_2")


def parked(one: Pipeline) -> dict[str, str]:
    """Run once; the tables that are parked, and why."""
    with pytest.raises(TablesUnfinished):
        one.once()
    tables = one.record().tables.values()
    return {table.name: table.error or "" for table in tables if table.is_parked}


@pytest.mark.pg(">= 12")
@pytest.mark.parametrize("way", ["on_read", "on_write"])
def test_a_key_that_rows_share_deletes_nothing(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
) -> None:
    """``earlier`` was copied by a version that took the user's word for its key."""
    use_local_spark(monkeypatch)
    one = pipeline(shop := database())
    one.sink_options = f', merge = "{way}"'
    one.write(KEYS.replace("\n", " ") + "\n")
    full = (f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in NAMES)
    shop.execute(TABLES, *full)

    with monkeypatch.context() as old:
        only = "public.earlier"
        old.setattr(
            "pgsluice.sinks.delta.handle.refuse_shared_keys",
            lambda files, table, *others: (
                table.title == only or refuse_shared_keys(files, table, *others)
            ),
        )
        why = parked(one)
    assert why.keys() == {"shared", "parts"}
    shared = r"the key \(device\) of table public.shared is not unique: 5000 values .* at \w+/\w+"
    assert re.match(shared, why["shared"])
    assert re.match(r"the key \(id\) of table public.parts is not unique: 2 values", why["parts"])
    assert not [*one.lake.glob("public/shared/*.parquet")], "what was staged is deleted"

    shop.execute(
        "UPDATE earlier SET n = -n WHERE device < 499",
        "UPDATE proved SET n = -n, a = a + 100000 WHERE a < 499",
        "INSERT INTO later VALUES (7, 7)",
        "UPDATE swapped SET id = 3 - id WHERE id < 3",
    )
    why = parked(one)
    assert why.keys() == {"shared", "parts", "earlier", "later", "swapped"}, why
    shared = r"the key \(device\) of table public.{} is not unique: {} .* at \w+/\w+"
    assert re.match(shared.format("earlier", "499 values"), why["earlier"])
    assert re.match(shared.format("later", "1 value"), why["later"])
    assert [count_rows(one.lake / "public" / name) for name in ("earlier", "later")] == [10000] * 2
    assert re.match(r"the key \(id\) of table public.swapped is not unique: 1", why["swapped"])
    assert "if it finds none, and the key's constraint is DEFERRABLE" in why["swapped"]
    one.assert_equal("proved")

    shop.execute("DELETE FROM later WHERE ctid IN (SELECT max(ctid) FROM later WHERE device = 7)")
    shop.execute("CREATE UNIQUE INDEX ON later (device)")
    one.copy("later")
    assert "later" not in parked(one)
    one.assert_equal("later")
    shop.execute("ANALYZE shared")
    assert run_command(["check", str(one.path)]) == 1
    said = capsys.readouterr().out
    assert "(device) of table public.later is unique by index later_device_idx" in said
    for name in ("parts", "swapped"):
        assert f"(id) of table public.{name} has no unique index that is valid and NOT DEF" in said
    assert "(device) of table public.shared is not unique: the server's statistics" in said
