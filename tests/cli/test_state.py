"""``status`` and ``drop`` on a spool that a real capture filled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Command, WriteConfig
from tests.support.databases import Database, MakeDatabase

from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Owner,
    RecordStore,
    Spool,
    SpoolReader,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    TableState,
    find_record,
    load_record,
)


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return one


@pytest.fixture
def captured(shop: Database, pgsluice: Command, write_config: WriteConfig) -> Iterator[Path]:
    """A configuration whose spool holds one transaction, and a subscription behind it."""
    path = write_config(shop.dsn, shop.name, f'publications = ["{shop.name}"]')
    assert pgsluice("capture", path, "--once").code == 0
    spool = path.parent / "spool"
    begin = SpoolReader(spool).frontier()
    record = SubscriptionRecord(
        name="lake",
        owner=Owner.CONFIG,
        mode="current",
        sink="somewhere",
        registered=begin,
        position=begin,
        tables={
            1: TableRecord("public", "t", TableState.READY, begin, rows=7),
            2: TableRecord("public", "bad", TableState.PARKED, begin, error="why"),
        },
    )
    RecordStore.create(spool, record)
    shop.execute("INSERT INTO t VALUES (1)")
    assert pgsluice("capture", path, "--once").code == 0
    return path


def _status(pgsluice: Command, path: Path) -> dict[str, Any]:
    outcome = pgsluice("status", path, "--json")
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


class TestStatus:
    def test_has_the_keys_of_the_design(self, pgsluice: Command, captured: Path) -> None:
        found = _status(pgsluice, captured)
        assert set(found) >= {"source", "spool", "subscriptions"}
        assert set(found["source"]) >= {
            "slot", "active", "confirmed_flush_lsn", "retained_bytes", "wal_status",
        }  # fmt: skip
        assert set(found["spool"]) >= {"position", "frontier", "bytes", "segments"}
        (lake,) = found["subscriptions"]
        assert set(lake) >= {
            "name", "mode", "sink", "position", "lag_bytes", "lag_s", "tables",
        }  # fmt: skip
        assert set(lake["tables"][0]) >= {
            "schema", "table", "state", "applied_through", "rows", "error",
        }  # fmt: skip

    def test_says_where_everything_stands(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        found = _status(pgsluice, captured)
        source, spool, (lake,) = found["source"], found["spool"], found["subscriptions"]
        assert (source["slot"], source["active"]) == (shop.name, False)
        since_13 = int(shop.server.version.partition(".")[0]) >= 13
        assert source["wal_status"] == ("reserved" if since_13 else None)
        assert Lsn.parse(source["confirmed_flush_lsn"]) <= Lsn.parse(spool["frontier"])
        assert spool["segments"] == 1
        assert spool["bytes"] > 0
        assert (lake["name"], lake["mode"]) == ("lake", "current")
        assert lake["lag_s"] > 0
        flush = Lsn.parse(source["flush_lsn"])
        assert lake["lag_bytes"] == flush - Lsn.parse(lake["position"])
        bad, good = lake["tables"]
        assert (bad["table"], bad["state"], bad["error"]) == ("bad", "p", "why")
        assert (good["table"], good["state"], good["rows"]) == ("t", "r", 7)

    def test_lag_counts_from_the_frontier_when_all_is_applied(
        self, pgsluice: Command, captured: Path
    ) -> None:
        spool = captured.parent / "spool"
        reader = SpoolReader(spool)
        record = load_record(spool, "lake")
        position = reader.position()
        RecordStore.create(
            spool,
            SubscriptionRecord("lake", Owner.CONFIG, "current", "x", record.registered, position),
        )
        found = _status(pgsluice, captured)
        (lake,) = found["subscriptions"]
        assert lake["lag_s"] == 0
        flush = Lsn.parse(found["source"]["flush_lsn"])
        assert lake["lag_bytes"] == flush - Lsn.parse(found["spool"]["frontier"])

    def test_works_while_the_server_is_away(self, pgsluice: Command, captured: Path) -> None:
        text = captured.read_text()
        captured.write_text(text.replace("dsn = ", 'dsn = "host=127.0.0.1 port=1" # ', 1))
        found = _status(pgsluice, captured)
        assert found["source"]["active"] is None
        assert "cannot be reached" in found["source"]["error"]
        assert found["spool"]["segments"] == 1
        (lake,) = found["subscriptions"]
        assert lake["lag_bytes"] is None
        assert lake["lag_s"] > 0
        assert len(lake["tables"]) == 2

    def test_before_the_first_run(
        self, pgsluice: Command, shop: Database, write_config: WriteConfig
    ) -> None:
        path = write_config(shop.dsn, shop.name)
        found = _status(pgsluice, path)
        assert found["source"]["active"] is False
        assert found["spool"]["position"] is None
        assert found["subscriptions"][0]["position"] is None
        outcome = pgsluice("status", path)
        assert "is not there yet" in outcome.out
        assert "not started yet" in outcome.out

    def test_for_people(self, pgsluice: Command, captured: Path) -> None:
        outcome = pgsluice("status", captured)
        assert outcome.code == 0
        assert "not in use" in outcome.out
        assert "parked" in outcome.out
        assert "public.bad: why" in outcome.out

    def test_shows_what_is_no_longer_in_the_configuration(
        self, pgsluice: Command, captured: Path
    ) -> None:
        text = captured.read_text().replace('name = "lake"', 'name = "pond"')
        captured.write_text(text)
        pond, lake = _status(pgsluice, captured)["subscriptions"]
        assert (pond["name"], pond["configured"], pond["position"]) == ("pond", True, None)
        assert (lake["name"], lake["configured"]) == ("lake", False)


class TestDrop:
    def test_forgets_everything_that_we_made(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        (captured.parent / "lake").mkdir()
        outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 0, outcome.err
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = "
        assert shop.execute(f"{slots}'{shop.name}'") == [(0,)]
        assert shop.execute("SELECT count(*) FROM pg_publication") == [(0,)]
        assert sorted(one.name for one in captured.parent.iterdir()) == ["lake", "shop.toml"]

    def test_twice_is_no_error(self, pgsluice: Command, captured: Path) -> None:
        assert pgsluice("drop", captured, "--yes").code == 0
        assert pgsluice("drop", captured, "--yes").code == 0

    def test_leaves_what_is_not_ours(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        shop.execute("CREATE PUBLICATION mine FOR TABLE t")
        (captured.parent / "spool" / "notes.txt").write_text("x")
        assert pgsluice("drop", captured, "--yes").code == 0
        assert shop.execute("SELECT pubname FROM pg_publication") == [("mine",)]
        assert [one.name for one in (captured.parent / "spool").iterdir()] == ["notes.txt"]

    def test_asks_first(
        self, pgsluice: Command, captured: Path, monkeypatch: pytest.MonkeyPatch, shop: Database
    ) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: "n")
        outcome = pgsluice("drop", captured)
        assert outcome.code != 0
        assert Spool.exists(captured.parent / "spool")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = "
        assert shop.execute(f"{slots}'{shop.name}'") == [(1,)]

    def test_refuses_while_a_capture_runs(self, pgsluice: Command, captured: Path) -> None:
        with SpoolWriter(Spool.open(captured.parent / "spool")):
            outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 1
        assert "a capture writes to the spool" in outcome.err
        assert Spool.exists(captured.parent / "spool")

    def test_one_subscription_alone(self, pgsluice: Command, captured: Path) -> None:
        spool = captured.parent / "spool"
        outcome = pgsluice("drop", captured, "--subscription", "lake", "--yes")
        assert outcome.code == 0, outcome.err
        assert find_record(spool, "lake") is None
        assert Spool.exists(spool)

    @pytest.mark.parametrize("name", ["leak", "..", "../../x"])
    def test_a_subscription_that_is_not_there(
        self, pgsluice: Command, captured: Path, name: str
    ) -> None:
        outcome = pgsluice("drop", captured, "--subscription", name, "--yes")
        assert outcome.code == 2
        assert f'no subscription "{name}"' in outcome.err
        assert Spool.exists(captured.parent / "spool")

    def test_a_server_that_is_away(self, pgsluice: Command, captured: Path) -> None:
        text = captured.read_text()
        captured.write_text(text.replace("dsn = ", 'dsn = "host=127.0.0.1 port=1" # ', 1))
        outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 1
        assert "try again when it is back" in outcome.err
        assert Spool.exists(captured.parent / "spool")


def test_copying_a_table_that_nobody_has(pgsluice: Command, captured: Path) -> None:
    outcome = pgsluice("copy", captured, "public.nope")
    assert outcome.code == 2
    assert "they have: public.bad, public.t" in outcome.err
