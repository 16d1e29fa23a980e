"""``status --check`` and ``--offline``: one line, an exit code, and no need of the server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.monitor.test_http_server import ask, free_port
from tests.support.capturing import running
from tests.support.commands import Command, WriteConfig
from tests.support.databases import MakeDatabase
from tests.support.waiting import await_that

from pgsluice.config import MonitorConfig, load_config
from pgsluice.monitor.metrics.serving import monitoring
from pgsluice.monitor.status import read_status
from pgsluice.spool import (
    Owner,
    RecordStore,
    SpoolReader,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.spool.lock import subscription_lock

_NOWHERE = "host=127.0.0.1 port=1 dbname=shop"


def test_before_the_first_start(pgsluice: Command, write_config: WriteConfig) -> None:
    path = write_config(_NOWHERE)
    outcome = pgsluice("status", path, "--check", "--offline")
    assert outcome.code == 1
    assert outcome.out == "2 problems: capture does not run; lake: not started yet\n"


def test_a_server_that_is_away_is_a_problem_unless_it_is_not_asked(
    pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(_NOWHERE)
    outcome = pgsluice("status", path, "--check")
    assert outcome.code == 1
    assert outcome.out.startswith("3 problems: source: ")
    assert outcome.out.count("\n") == 1
    assert pgsluice("status", path).code == 0  # without --check it only shows


def test_from_all_is_well_to_a_parked_table_and_the_end_of_the_run(
    pgsluice: Command, write_config: WriteConfig, database: MakeDatabase
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    path = write_config(shop.dsn, shop.name, f'publications = ["{shop.name}"]')
    config = load_config(path)
    spool = config.spool.path
    with running(config):
        await_that(lambda: SpoolReader.is_there(spool), "there is a spool")
        at = SpoolReader(spool).position()
        ready = TableRecord("public", "t", TableState.READY, at)
        record = SubscriptionRecord(
            "lake", Owner.CONFIG, "current", "somewhere", at, at, tables={1: ready}
        )
        store = RecordStore.create(spool, record)
        with subscription_lock(spool, "lake"):

            def is_streaming() -> bool:
                status = read_status(config, asks_server=False)
                return status.capture.is_streaming and status.source.slot is not None

            await_that(is_streaming, "capture streams and has read the slot")
            for options in (["--check"], ["--check", "--offline"]):
                outcome = pgsluice("status", path, *options)
                assert (outcome.code, outcome.out) == (0, "ok: 1 table, 0 s behind\n")
            parked = replace(ready, state=TableState.PARKED, error="no key\n  → give it one")
            store.save(replace(record, tables={1: parked}))
            outcome = pgsluice("status", path, "--check", "--offline")
            assert (outcome.code, outcome.out) == (
                1,
                "1 problem: lake: 1 table parked (public.t)\n",
            )
            outcome = pgsluice("status", path, "--check", "--json")
            said = json.loads(outcome.out)
            assert outcome.code == 1
            assert said["problems"] == [
                {
                    "kind": "parked",
                    "what": "lake: 1 table parked (public.t)",
                    "prevents_ready": False,
                }
            ]
            assert said["subscriptions"][0]["tables"][0]["state_words"] == "parked"
            assert said["read_at"] > 1.7e9
            _is_ready(path, 200, b"ready\nlake: 1 table parked (public.t)\n")
        outcome = pgsluice("status", path, "--check", "--offline")
        assert outcome.out.startswith("2 problems: lake: no run is active; lake: 1 table parked")
        _is_ready(
            path, 503, b"not ready\nlake: no run is active\nlake: 1 table parked (public.t)\n"
        )


def _is_ready(path: Path, code: int, body: bytes) -> None:
    port = free_port()
    monitor = MonitorConfig(listen=f"127.0.0.1:{port}")
    with monitoring(load_config(path).model_copy(update={"monitor": monitor})):
        assert ask(port, "/readyz") == (code, body)
        assert ask(port, "/healthz") == (200, b"ok\n")


def test_the_help_lists_the_exit_codes(pgsluice: Command) -> None:
    text = pgsluice("status", "--help").out
    assert "Exit codes:" in text
    assert "1    With --check: the printed line names a problem." in text
