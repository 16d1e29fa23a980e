"""Consistent checkpoints, as readers find them: ``pgsluice at`` and the versions of all tables."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading

import pytest
from deltalake import DeltaTable
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.errors import ConfigError, ExitCode, PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spark.checkpoints import Checkpoint, find_checkpoint, parse_moment, read_at
from pgsluice.subscription.base.waits import Waits

TOTAL = 2000


def _money(checkpoint: Checkpoint) -> int:
    tables = [DeltaTable(str(table.location), table.version) for table in checkpoint.tables]
    return sum(sum(table.to_pyarrow_table()["balance"].to_pylist()) for table in tables)


def _find(one: Pipeline, at: Lsn | dt.datetime | None = None) -> Checkpoint:
    return find_checkpoint(one.config, one.config.subscription("lake"), at)


def _transfer(shop: Database, ended: threading.Event) -> None:
    chance = random.Random(4)
    with shop.connect() as connection:
        while not ended.is_set():
            amount, row = chance.randrange(1, 9), chance.randrange(10)
            with connection.transaction():
                for table, change in (("checking", -amount), ("saving", amount)):
                    connection.execute(
                        f"UPDATE {table} SET balance = balance + %s WHERE id = %s", [change, row]
                    )


def test_money_that_moves_between_tables_has_one_sum_at_each_checkpoint(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More commits than maintenance waits for: it deletes files, but none of a checkpoint."""
    use_local_spark(monkeypatch)
    shop = database()
    for table in ("checking", "saving"):
        shop.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, balance int)",
            f"INSERT INTO {table} SELECT i, 100 FROM generate_series(0, 9) i",
        )
    one = pipeline(shop, extra="cut_interval_s = 0.2")
    one.waits = Waits(cuts_apart_s=0.5)
    seen: dict[Lsn, Checkpoint] = {}
    ended = threading.Event()
    writer = threading.Thread(target=_transfer, args=(shop, ended))
    with one.live():
        one.wait_applied()
        writer.start()

        def is_enough() -> bool:
            try:
                checkpoint = _find(one)
            except PgsluiceError:  # none yet
                return False
            if len(checkpoint.tables) < 2:  # one was being copied
                return False
            seen[checkpoint.lsn] = checkpoint
            assert _money(checkpoint) == TOTAL
            return len(seen) >= 8 and max(table.version for table in checkpoint.tables) > 60

        try:
            one.wait_until(is_enough, progress=lambda: len(seen))
        finally:
            ended.set()
            writer.join()
    for checkpoint in seen.values():
        assert [table.name for table in checkpoint.tables] == ["checking", "saving"]
        # Perhaps not kept itself: then an earlier one is.
        kept = _find(one, checkpoint.lsn)
        assert kept.lsn <= checkpoint.lsn
        # The earliest ones lack tables that were being copied.
        assert _money(kept) == TOTAL // 2 * len(kept.tables), kept.tables


def test_at_prints_the_versions_of_a_position_or_a_time(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_local_spark(monkeypatch)
    shop = database()
    shop.execute('CREATE TABLE "<b>" (id int PRIMARY KEY)', 'INSERT INTO "<b>" VALUES (1)')
    one = pipeline(shop)
    one.waits = Waits(cuts_apart_s=0.0)
    began = dt.datetime.now(dt.UTC)
    with pytest.raises(PgsluiceError, match="has no consistent checkpoint yet"):
        _find(one)
    checkpoints = []
    for number in (2, 3):
        shop.execute(f'INSERT INTO "<b>" VALUES ({number})')
        one.once()
        checkpoints.append(_find(one))
    first, second = checkpoints
    assert first.lsn < second.lsn
    assert first.tables[0].version < second.tables[0].version

    def asked(*arguments: str) -> list[dict[str, object]]:
        capsys.readouterr()
        assert run_command(["at", str(one.path), *arguments, "--json"]) == 0
        (answer,) = json.loads(capsys.readouterr().out)
        assert isinstance(answer, dict)
        return [answer]

    assert asked() == asked(str(second.lsn)) == asked("FFFF/0") == asked("9999-01-01")
    assert asked(str(first.lsn))[0]["lsn"] == str(first.lsn)
    assert asked(str(Lsn(second.lsn - 1)))[0]["lsn"] == str(first.lsn)
    assert asked(first.made_at.isoformat())[0]["lsn"] == str(first.lsn)
    assert asked()[0]["tables"] == [
        {
            "schema": "public",
            "table": "<b>",
            "version": second.tables[0].version,
            "location": second.tables[0].location,
        }
    ]
    assert run_command(["at", str(one.path), str(first.lsn)]) == 0
    assert f"public.<b>: version {first.tables[0].version} of {one.lake}" in capsys.readouterr().out
    assert run_command(["at", str(one.path), began.isoformat()]) == ExitCode.FAILED
    assert "cut_retention_s = 600 seconds" in capsys.readouterr().err
    assert run_command(["at", str(one.path), "yesterday"]) == ExitCode.USAGE
    assert "'yesterday' is neither an LSN nor a time" in capsys.readouterr().err


def test_a_time_without_an_offset_is_local() -> None:
    local = dt.datetime(2026, 11, 27, 14, 5)
    assert parse_moment("2026-11-27 14:05") == local.astimezone(dt.UTC)
    assert parse_moment("0/16B3748") == Lsn(0x16B3748)


def test_read_at_needs_one_subscription(database: MakeDatabase, pipeline: MakePipeline) -> None:
    other = '[[subscription]]\nname = "other"\nsink = { type = "delta", path = "o/{table}" }\n'
    one = pipeline(database())
    one.path.write_text(one.path.read_text() + other)
    with pytest.raises(ConfigError, match="name one of the subscriptions: lake, other"):
        read_at(None, one.path)  # type: ignore[arg-type]
