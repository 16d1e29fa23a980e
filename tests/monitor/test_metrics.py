"""Metrics of a spool that a real capture fills: they are the figures of ``pgsluice status``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.monitor.test_http_server import ask, free_port
from tests.monitor.test_problems import CONFIG, LAKE, READY, WELL
from tests.support.capturing import configure, phase, running
from tests.support.databases import Database, MakeDatabase
from tests.support.odd_names import ODD_NAMES
from tests.support.waiting import await_that

from pgsluice.config import Config, MonitorConfig
from pgsluice.lsn import Lsn
from pgsluice.monitor.metrics.families import FAMILIES, render
from pgsluice.monitor.metrics.http_server import Recent
from pgsluice.monitor.metrics.samples import samples
from pgsluice.monitor.metrics.serving import monitoring
from pgsluice.monitor.status import Status, read_status

Series = dict[str, float]
"""Values by name and labels, as ``pgsluice_capture_phase{phase="streaming"}``."""


def parsed(text: str) -> Series:
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value!r}" for name, value in sample.labels.items())
            key = sample.name + (f"{{{labels}}}" if labels else "")
            assert key not in series
            series[key] = sample.value
    return series


def scraped(config: Config) -> Series:
    assert config.monitor.address is not None
    code, body = ask(config.monitor.address[1], "/metrics")
    assert code == 200
    return parsed(body.decode())


def rendered(status: Status, config: Config) -> Series:
    return parsed(render(samples(status, config)).decode())


class Shop(NamedTuple):
    db: Database
    config: Config


@pytest.fixture
def shop(database: MakeDatabase, tmp_path: Path) -> Shop:
    """A database with a table, and a configuration that listens."""
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    monitor = MonitorConfig(listen=f"127.0.0.1:{free_port()}")
    config = configure(db, tmp_path / "spool").model_copy(update={"monitor": monitor})
    return Shop(db, config)


def test_nothing_is_served_unless_it_is_asked_for(shop: Shop) -> None:
    assert shop.config.monitor.address is not None
    with monitoring(shop.config.model_copy(update={"monitor": MonitorConfig()})):
        pass
    with pytest.raises(ConnectionRefusedError):
        ask(shop.config.monitor.address[1], "/metrics")


def test_metrics_before_the_first_start_say_so(shop: Shop) -> None:
    with monitoring(shop.config):
        series = scraped(shop.config)
    assert series["pgsluice_capture_running"] == 0
    assert series["pgsluice_capture_phase{phase='stopped'}"] == 1
    assert "pgsluice_slot_exists" not in series
    assert "pgsluice_spool_bytes" not in series


def test_metrics_are_the_figures_of_the_status(shop: Shop) -> None:
    db, config = shop
    with running(config), monitoring(config):
        await_that(lambda: phase(config) == "streaming", "capture streams")
        db.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
        db.execute("UPDATE t SET v = 'y' WHERE id <= 10", "DELETE FROM t WHERE id = 1")

        def is_received() -> bool:
            return read_status(config, asks_server=False).capture.counts.transactions == 3

        await_that(is_received, "three transactions are in the spool")
        asked = read_status(config)
        series = scraped(config)
    assert series["pgsluice_capture_running"] == 1
    assert series["pgsluice_capture_phase{phase='streaming'}"] == 1
    assert series["pgsluice_capture_phase{phase='reconnecting'}"] == 0
    assert series["pgsluice_capture_transactions_total"] == 3
    assert series["pgsluice_capture_rows_total"] == 111
    assert series["pgsluice_capture_stream_bytes_total"] > 111 * 25
    assert series["pgsluice_capture_connections_total{outcome='started'}"] == 1
    assert series["pgsluice_capture_last_commit_timestamp_seconds"] > 1.7e9
    assert series["pgsluice_spool_bytes"] == asked.spool.bytes > 0
    assert series["pgsluice_spool_segments"] == asked.spool.segments
    assert Lsn(int(series["pgsluice_capture_received_through_lsn"])) >= asked.spool.position
    assert series["pgsluice_slot_exists"] == series["pgsluice_slot_active"] == 1
    assert asked.source.slot is not None
    if asked.source.slot.wal_status is not None:  # from 13 on
        assert series["pgsluice_slot_wal_status{wal_status='reserved'}"] == 1
        assert series["pgsluice_slot_wal_status{wal_status='lost'}"] == 0
    assert series["pgsluice_slot_retained_wal_bytes"] >= 0


def test_a_capture_that_ended_is_not_running(shop: Shop) -> None:
    _, config = shop
    with running(config):
        await_that(lambda: phase(config) == "streaming", "capture streams")
    series = rendered(read_status(config, asks_server=False), config)
    assert series["pgsluice_capture_running"] == 0
    assert series["pgsluice_capture_phase{phase='stopped'}"] == 1
    assert "pgsluice_capture_rows_total" not in series
    assert "pgsluice_capture_received_behind_bytes" not in series


def _with_tables(names: list[str], *, tables: bool) -> tuple[Status, Config]:
    lake = replace(LAKE, tables=tuple(replace(READY, name=name) for name in names))
    monitor = CONFIG.monitor.model_copy(update={"tables": tables})
    return replace(WELL, subscriptions=(lake,)), CONFIG.model_copy(update={"monitor": monitor})


def test_a_name_can_be_anything_and_stays_one_label() -> None:
    odd = [
        "<script>alert(1)</script>",
        'a"} 1\nup{x="',
        "back\\slash",
        "\u202e",
        "\ud800",
        *ODD_NAMES,
    ]
    status, config = _with_tables(odd, tables=True)
    families = text_string_to_metric_families(render(samples(status, config)).decode())
    (changes,) = (each for each in families if each.name == "pgsluice_table_changes")
    labels = [sample.labels["table"] for sample in changes.samples]
    assert labels == [name.replace("\ud800", "\\ud800") for name in odd]


def test_tables_have_series_only_if_it_is_asked_for() -> None:
    status, config = _with_tables(["a", "b"], tables=False)
    series = rendered(status, config)
    assert not [name for name in series if name.startswith("pgsluice_table_")]
    ready = "pgsluice_subscription_tables{state='ready',subscription='lake'}"
    assert series[ready] == 2


def test_rejects_are_counted_by_subscription_and_table() -> None:
    with_rejects = (replace(READY, rejects=2), replace(READY, name="b", rejects=3))
    status = replace(WELL, subscriptions=(replace(LAKE, tables=with_rejects),))
    config = CONFIG.model_copy(update={"monitor": MonitorConfig(tables=True)})
    series = rendered(status, config)
    assert series["pgsluice_subscription_rejects{subscription='lake'}"] == 5
    assert series["pgsluice_table_rejects{schema='public',subscription='lake',table='b'}"] == 3


def test_every_family_has_its_words_and_a_name_of_prometheus() -> None:
    for family in FAMILIES:
        assert family.help.endswith("."), family
        assert family.name.startswith("pgsluice_"), family
        assert (family.kind == "counter") == family.name.endswith("_total"), family
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_what_is_rendered_is_kept_for_some_seconds() -> None:
    now, made = [0.0], [0]

    def make() -> bytes:
        made[0] += 1
        return b"%d" % made[0]

    recent = Recent(make, 5.0, lambda: now[0])
    assert [recent(), recent()] == [b"1", b"1"]
    now[0] = 4.9
    assert recent() == b"1"
    now[0] = 5.0
    assert [recent(), recent()] == [b"2", b"2"]


def test_what_takes_longer_to_make_than_it_is_kept_is_kept_after_that() -> None:
    now = [0.0]

    def make() -> float:
        now[0] += 60.0
        return now[0]

    recent = Recent(make, 5.0, lambda: now[0])
    assert recent() == recent() == 60.0
