"""``status``, ``drop`` and ``copy`` on a spool that a real capture has filled."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.commands import Command, WriteConfig
from tests.support.databases import Database, MakeDatabase

from pgsluice.capture.health import CaptureHealth, write_health
from pgsluice.cli.status_view import held_line, show
from pgsluice.events import CapturePhase, CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.monitor.spool_status import HeldSpool, SpoolStatus
from pgsluice.monitor.status import SourceStatus, Status, SubscriptionStatus
from pgsluice.spool import (
    Owner,
    Pending,
    RecordStore,
    Spool,
    SpoolReader,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    TableState,
    find_record,
)
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import CopyStatus, write_copy_status


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return shop


@pytest.fixture
def captured(shop: Database, pgsluice: Command, write_config: WriteConfig) -> Iterator[Path]:
    """A configuration whose spool has one transaction and a subscription that lags behind it."""
    path = write_config(shop.dsn, shop.name, f'publications = ["{shop.name}"]')
    assert pgsluice("capture", path, "--once").code == 0
    spool = path.parent / "spool"
    begin = SpoolReader(spool).frontier()
    ((oid,),) = shop.execute("SELECT 't'::regclass::oid::bigint")
    record = SubscriptionRecord(
        name="lake",
        owner=Owner.CONFIG,
        mode="current",
        sink="somewhere",
        registered=begin,
        position=begin,
        tables={
            oid: TableRecord("public", "t", TableState.READY, begin, rows=7),
            2: TableRecord("public", "bad", TableState.PARKED, begin, error="why"),
        },
    )
    RecordStore.create(spool, record)
    shop.execute("INSERT INTO t VALUES (1)")
    assert pgsluice("capture", path, "--once").code == 0
    return path


def _table_t(record: SubscriptionRecord) -> TableRecord:
    return next(table for table in record.tables.values() if table.name == "t")


def _has_applied_all(path: Path, **errors: str) -> Lsn:
    """Have the subscription apply all that was received, but for tables with errors; where those
    stand."""
    spool = path.parent / "spool"
    record = find_record(spool, "lake")
    assert record is not None
    position = SpoolReader(spool).position()
    tables = {
        oid: replace(table, error=errors[table.name], pending=Pending(due=0.0))
        if table.name in errors
        else replace(table, applied_through=position)
        for oid, table in record.tables.items()
    }
    RecordStore.create(spool, replace(record, position=position, tables=tables))
    return record.position


def _status(pgsluice: Command, path: Path) -> dict[str, Any]:
    outcome = pgsluice("status", path, "--json")
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


def test_what_another_setting_would_gain_is_shown_with_its_table() -> None:
    table = TableRecord("public", "t", TableState.READY, Lsn(1), merge_s=2.0)
    advice = {"public.t": "its last merge took 2.0 s\n  → merge on read"}
    lake = SubscriptionStatus(
        "lake", "current", "x", Lsn(1), 0, 0, (table,), is_enabled=True, is_configured=True,
        advice=advice,
    )  # fmt: skip
    assert lake.to_json()["tables"][0]["advice"] == advice["public.t"]
    text = StringIO()
    shown = Status(SourceStatus("s"), SpoolStatus(), (lake,))
    show(shown, Console(file=text, width=100))
    assert "public.t: its last merge took 2.0 s" in text.getvalue()


def test_a_stream_of_spark_has_no_target_and_is_no_mistake_of_the_configuration() -> None:
    audit = SubscriptionStatus(
        "audit", "changelog", "", Lsn(1), 0, 0, (), is_enabled=True, is_configured=False
    )
    text = StringIO()
    shown = Status(SourceStatus("s"), SpoolStatus(), (audit,))
    show(shown, Console(file=text, width=100))
    assert "audit  a Spark stream  at 0/1, no lag" in text.getvalue()


class TestStatus:
    def test_json_has_the_documented_keys(self, pgsluice: Command, captured: Path) -> None:
        status = _status(pgsluice, captured)
        assert set(status) >= {"source", "spool", "subscriptions"}
        assert set(status["source"]) >= {
            "slot", "active", "confirmed_flush_lsn", "retained_bytes", "wal_status",
        }  # fmt: skip
        assert set(status["spool"]) >= {"position", "frontier", "bytes", "segments"}
        (lake,) = status["subscriptions"]
        assert set(lake) >= {
            "name", "mode", "sink", "position", "lag_bytes", "lag_s", "tables",
        }  # fmt: skip
        assert set(lake["tables"][0]) >= {
            "schema", "table", "state", "applied_through", "rows", "rows_skipped", "error",
        }  # fmt: skip

    def test_json_has_states_and_positions(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        status = _status(pgsluice, captured)
        source, spool, (lake,) = status["source"], status["spool"], status["subscriptions"]
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

    def test_lag_counts_from_the_frontier_if_all_is_applied(
        self, pgsluice: Command, captured: Path
    ) -> None:
        spool = captured.parent / "spool"
        reader = SpoolReader(spool)
        record = find_record(spool, "lake")
        position = reader.position()
        RecordStore.create(
            spool,
            SubscriptionRecord("lake", Owner.CONFIG, "current", "x", record.registered, position),
        )
        status = _status(pgsluice, captured)
        (lake,) = status["subscriptions"]
        assert lake["lag_s"] == 0
        flush = Lsn.parse(status["source"]["flush_lsn"])
        assert lake["lag_bytes"] == flush - Lsn.parse(status["spool"]["frontier"])

    def test_wal_of_others_is_no_lag_while_capture_streams(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        spool = captured.parent / "spool"
        position = SpoolReader(spool).position()
        record = find_record(spool, "lake")
        assert record is not None
        RecordStore.create(
            spool,
            SubscriptionRecord("lake", Owner.CONFIG, "current", "x", record.registered, position),
        )
        shop.execute("CREATE TABLE elsewhere (v int)")  # WAL that is not sent
        end = Lsn(2**62)  # capture knows that everything up to there was sent
        health = CaptureHealth(
            os.getpid(), CapturePhase.STREAMING, time.time(), server_end=str(end)
        )
        write_health(spool, health)
        assert _status(pgsluice, captured)["subscriptions"][0]["lag_bytes"] == 0
        write_health(spool, replace(health, phase=CapturePhase.RECONNECTING))
        assert _status(pgsluice, captured)["subscriptions"][0]["lag_bytes"] > 0

    def test_says_what_is_in_the_way_of_capture(self, pgsluice: Command, captured: Path) -> None:
        full = CaptureHealth(os.getpid(), CapturePhase.WAITING, time.time(), message="it is full")
        write_health(captured.parent / "spool", full)
        outcome = pgsluice("status", captured)
        assert "capture waiting for room in the spool: it is full" in outcome.out
        again = replace(full, phase=CapturePhase.RECONNECTING, message="refused", times=12)
        write_health(captured.parent / "spool", again)
        outcome = pgsluice("status", captured)
        assert "capture reconnecting, 12 times in a row: refused" in outcome.out
        assert _status(pgsluice, captured)["capture"] == {
            "running": True, "elsewhere": False,
            "phase": "reconnecting", "message": "refused", "times": 12,
            "reported_at": again.written_at, "acknowledged": None, "last_commit_at": None,
            "counts": {"connections": {}, "rows": 0, "stream_bytes": 0, "transactions": 0},
            "streaming": False,
        }  # fmt: skip

    def test_a_capture_that_hangs_knows_nothing_of_the_server(
        self, pgsluice: Command, captured: Path
    ) -> None:
        long_ago = CaptureHealth(
            os.getpid(), CapturePhase.STREAMING, time.time() - 3600, server_end=str(Lsn(2**62))
        )
        write_health(captured.parent / "spool", long_ago)
        status = _status(pgsluice, captured)
        assert status["capture"]["running"], "its process is there"
        flush, (lake,) = Lsn.parse(status["source"]["flush_lsn"]), status["subscriptions"]
        assert lake["lag_bytes"] == flush - Lsn.parse(lake["position"])
        assert f"process {os.getpid()} has reported nothing since" in status["capture"]["message"]

    def test_says_that_capture_does_not_run_and_what_is_not_received(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        shop.execute("INSERT INTO t VALUES (2)")
        out = pgsluice("status", captured).out
        assert re.search(
            r"capture does not run since .* UTC; .* of the server's WAL are not received", out
        )
        _has_applied_all(captured)
        out = pgsluice("status", captured).out
        assert re.search(r"everything received is applied, .* not received yet", out)

    def test_changes_that_a_target_lacks_are_lag_wherever_the_subscription_is(
        self, pgsluice: Command, captured: Path
    ) -> None:
        """Its store is away: batches go on, and the table waits."""
        begin = _has_applied_all(captured, t="the store is away")
        status = _status(pgsluice, captured)
        (lake,) = status["subscriptions"]
        bad, waiting = lake["tables"]
        lag_bytes = Lsn.parse(status["source"]["flush_lsn"]) - begin
        assert (lake["lag_bytes"], waiting["lag_bytes"]) == (lag_bytes, lag_bytes)
        assert lake["lag_s"] > 0
        assert waiting["lag_s"] == lake["lag_s"]
        assert time.time() - 3600 < waiting["waits_since"] < time.time()
        assert (waiting["state"], waiting["waits_for"]) == ("f", "the store is away")
        assert (bad["lag_s"], bad["waits_since"], bad["waits_for"]) == (0, None, "why")
        out = pgsluice("status", captured).out
        assert "no lag" not in out
        assert re.search(r"public\.t: waiting since .* UTC: the store is away", out)
        assert re.search(r"public\.t +catching up", out)

    def test_says_whether_a_run_is_active_and_what_waits_for_one(
        self, pgsluice: Command, captured: Path
    ) -> None:
        (lake,) = _status(pgsluice, captured)["subscriptions"]
        good = lake["tables"][1]
        assert (lake["running"], good["state"]) == (False, "r"), "it is at the position"
        assert (good["lag_s"] > 0, good["waits_for"]) == (True, "no run is active")
        out = pgsluice("status", captured).out
        assert "behind; no run is active" in out
        assert re.search(r"public\.t waits since .* UTC: no run is active", out)
        with subscription_lock(captured.parent / "spool", "lake"):
            (lake,) = _status(pgsluice, captured)["subscriptions"]
            assert (lake["running"], lake["tables"][1]["waits_for"]) == (True, None)
            assert "no run is active" not in pgsluice("status", captured).out

    def test_tables_that_wait_for_a_copy_are_not_without_lag(
        self, pgsluice: Command, captured: Path
    ) -> None:
        record = find_record(spool := captured.parent / "spool", "lake")
        assert record is not None
        position = SpoolReader(spool).position()
        late = TableRecord("public", "late", TableState.INITIALISE)
        RecordStore.create(spool, replace(record, position=position, tables={9: late}))
        (lake,) = _status(pgsluice, captured)["subscriptions"]
        assert (lake["tables"][0]["lag_s"], lake["lag_s"]) == (None, 0)
        assert "1 table to copy" in pgsluice("status", captured).out

    def test_says_who_keeps_the_spool_and_since_when(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        spool = captured.parent / "spool"
        before = _status(pgsluice, captured)["spool"]["held"]
        assert (before["subscription"], before["table"]) == ("lake", None)
        assert before["bytes"] == _status(pgsluice, captured)["spool"]["bytes"]
        assert 0 <= time.time() - before["since"] < 3600
        assert "of changes since" not in pgsluice("status", captured).out, "they are of now"
        # The subscription goes on, and its parked table stays behind.
        record = find_record(spool, "lake")
        assert record is not None
        position = SpoolReader(spool).position()
        moved = replace(_table_t(record), applied_through=position)
        tables = {oid: moved if t.name == "t" else t for oid, t in record.tables.items()}
        RecordStore.create(spool, replace(record, position=position, tables=tables))
        held = _status(pgsluice, captured)["spool"]["held"]
        assert (held["table"], held["position"]) == ("public.bad", str(record.position))
        view = held_line(HeldSpool("lake", "public.bad", record.position, 1.7e9, 3 << 30))
        assert str(view).strip() == (
            "keeps 3.0 GiB of changes since 2023-11-14 22:13:20 UTC, "
            f"for subscription lake, table public.bad at {record.position}"
        )

    def test_a_copied_table_is_synchronized_before_the_stream_reaches_it(
        self, pgsluice: Command, captured: Path
    ) -> None:
        spool = captured.parent / "spool"
        record = find_record(spool, "lake")
        assert record is not None
        ahead = TableRecord("public", "ahead", TableState.COPIED, Lsn(record.position + 1))
        behind = TableRecord("public", "behind", TableState.COPIED, record.position)
        RecordStore.create(spool, replace(record, tables={1: ahead, 2: behind}))
        tables = _status(pgsluice, captured)["subscriptions"][0]["tables"]
        assert [table["state"] for table in tables] == ["s", "f"]
        assert "synchronized" in pgsluice("status", captured).out

    def test_says_how_far_copies_are_and_what_they_hold(
        self, pgsluice: Command, captured: Path
    ) -> None:
        spool = captured.parent / "spool"
        record = find_record(spool, "lake")
        assert record is not None
        copied = replace(_table_t(record), state=TableState.DATA_COPY)
        planned = replace(copied, name="planned")
        RecordStore.create(spool, replace(record, tables={1: copied, 5: planned}))
        amount = CopyAmount(12, 40, 1_200_000, 3 << 28, 10 << 28, 60_000, 1 << 25)
        whole = replace(amount, ranges=14, all_ranges=42)
        write_copy_status(
            subscription_folder(spool, "lake"),
            CopyStatus({1: amount}, {5: "its snapshot"}, 2, 4, whole),
        )
        (lake,) = _status(pgsluice, captured)["subscriptions"]
        assert lake["copies"] == {
            "tables": 2, "all_tables": 4, "ranges": 14, "all_ranges": 42, "rows": 1_200_000,
            "bytes": 3 << 28, "all_bytes": 10 << 28, "rows_per_s": 60_000, "bytes_per_s": 1 << 25,
            "left_s": 56.0,
        }  # fmt: skip
        waiting, copying = lake["tables"]
        held_bytes = _status(pgsluice, captured)["spool"]["bytes"]
        assert waiting["copy"] == {"waits_for": "its snapshot", "held_bytes": held_bytes}
        assert (copying["state"], copying["copy"]["ranges"]) == ("d", 12)
        out = pgsluice("status", captured).out
        far = "1,200,000 rows, 768.0 MiB of 2.5 GiB, 32.0 MiB/s, 60,000 rows/s, about 56 s left"
        assert f"copies: 2 of 4 tables, 14 of 42 ranges, {far}" in out
        assert f"public.t: 12 of 40 ranges, {far}; keeps " in out
        assert "copying, 12 of 40 ranges" in out
        assert "public.planned: waits for its snapshot; keeps " in out

    def test_works_while_the_server_is_down(self, pgsluice: Command, captured: Path) -> None:
        text = captured.read_text()
        captured.write_text(text.replace("dsn = ", 'dsn = "host=127.0.0.1 port=1" # ', 1))
        status = _status(pgsluice, captured)
        assert status["source"]["active"] is None
        assert "cannot reach the server" in status["source"]["error"]
        assert status["spool"]["segments"] == 1
        (lake,) = status["subscriptions"]
        assert lake["lag_bytes"] is None
        assert lake["lag_s"] > 0
        assert len(lake["tables"]) == 2

    def test_before_the_first_run(
        self, pgsluice: Command, shop: Database, write_config: WriteConfig
    ) -> None:
        path = write_config(shop.dsn, shop.name)
        status = _status(pgsluice, path)
        assert status["source"]["active"] is False
        assert status["spool"]["position"] is None
        assert status["subscriptions"][0]["position"] is None
        outcome = pgsluice("status", path)
        assert "does not exist yet" in outcome.out
        assert "not started yet" in outcome.out

    def test_text(self, pgsluice: Command, captured: Path) -> None:
        outcome = pgsluice("status", captured)
        assert outcome.code == 0
        assert "not in use" in outcome.out
        assert "parked" in outcome.out
        assert "public.bad: why" in outcome.out

    def test_shows_subscriptions_that_are_not_configured(
        self, pgsluice: Command, captured: Path
    ) -> None:
        text = captured.read_text().replace('name = "lake"', 'name = "pond"')
        captured.write_text(text)
        pond, lake = _status(pgsluice, captured)["subscriptions"]
        assert (pond["name"], pond["configured"], pond["position"]) == ("pond", True, None)
        assert (lake["name"], lake["configured"]) == ("lake", False)


class TestDrop:
    def test_removes_everything_that_we_created(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        (captured.parent / "lake").mkdir()
        outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 0, outcome.err
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = "
        assert shop.execute(f"{slots}'{shop.name}'") == [(0,)]
        assert shop.execute("SELECT count(*) FROM pg_publication") == [(0,)]
        assert sorted(entry.name for entry in captured.parent.iterdir()) == ["lake", "shop.toml"]

    def test_can_be_repeated(self, pgsluice: Command, captured: Path) -> None:
        assert pgsluice("drop", captured, "--yes").code == 0
        assert pgsluice("drop", captured, "--yes").code == 0

    def test_keeps_what_is_not_ours(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        shop.execute("CREATE PUBLICATION mine FOR TABLE t")
        (captured.parent / "spool" / "notes.txt").write_text("x")
        assert pgsluice("drop", captured, "--yes").code == 0
        assert shop.execute("SELECT pubname FROM pg_publication") == [("mine",)]
        assert [entry.name for entry in (captured.parent / "spool").iterdir()] == ["notes.txt"]

    def test_asks_for_confirmation(
        self, pgsluice: Command, captured: Path, monkeypatch: pytest.MonkeyPatch, shop: Database
    ) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: "n")
        outcome = pgsluice("drop", captured)
        assert outcome.code != 0
        assert Spool.exists(captured.parent / "spool")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = "
        assert shop.execute(f"{slots}'{shop.name}'") == [(1,)]

    def test_refused_while_a_capture_is_active(self, pgsluice: Command, captured: Path) -> None:
        with SpoolWriter(Spool.open(captured.parent / "spool")):
            outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 1
        assert "another capture process writes to the spool" in outcome.err
        assert Spool.exists(captured.parent / "spool")

    def test_refused_while_a_run_is_active(
        self, pgsluice: Command, captured: Path, shop: Database
    ) -> None:
        """Its capture has just ended, and starts again; or it has none."""
        with subscription_lock(captured.parent / "spool", "lake"):
            outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 1
        assert "another process runs the subscription lake" in outcome.err
        assert Spool.exists(captured.parent / "spool")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = "
        assert shop.execute(f"{slots}'{shop.name}'") == [(1,)]

    def test_a_single_subscription(self, pgsluice: Command, captured: Path) -> None:
        spool = captured.parent / "spool"
        outcome = pgsluice("drop", captured, "--subscription", "lake", "--yes")
        assert outcome.code == 0, outcome.err
        assert find_record(spool, "lake") is None
        assert Spool.exists(spool)

    @pytest.mark.parametrize("name", ["leak", "..", "../../x"])
    def test_an_unknown_subscription(self, pgsluice: Command, captured: Path, name: str) -> None:
        outcome = pgsluice("drop", captured, "--subscription", name, "--yes")
        assert outcome.code == 2
        assert f'no subscription "{name}"' in outcome.err
        assert Spool.exists(captured.parent / "spool")

    def test_a_server_that_is_down(self, pgsluice: Command, captured: Path) -> None:
        text = captured.read_text()
        captured.write_text(text.replace("dsn = ", 'dsn = "host=127.0.0.1 port=1" # ', 1))
        outcome = pgsluice("drop", captured, "--yes")
        assert outcome.code == 1
        assert "try again when it is reachable" in outcome.err
        assert Spool.exists(captured.parent / "spool")


def test_copying_an_unknown_table(pgsluice: Command, captured: Path) -> None:
    outcome = pgsluice("copy", captured, "public.nope")
    assert outcome.code == 2
    assert "the tables are: public.bad, public.t" in outcome.err
    outcome = pgsluice("copy", captured, "bda")
    assert "did you mean public.bad?" in outcome.err
