"""Change logs where processes are killed between their rows and their commit, on a disk and in a
store; and with maintenance."""

from __future__ import annotations

import multiprocessing
import random
import signal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.change_logs import by_loop
from tests.support.object_stores import ObjectStore

from pgsluice import failpoints
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.identity import TargetIdentity, TargetMode
from pgsluice.sinks.writers import LogWriter
from pgsluice.testing.changes import ABSENT
from pgsluice.testing.sink_log import LOG
from pgsluice.testing.sink_tests import SCHEMA, SPOOL, TABLE, batches, changes, row

COLUMNS = LOG.of_table(SCHEMA, "t")


def writer(sink: DeltaSink, copy: int = 1) -> LogWriter:
    return LogWriter(sink, TABLE, TargetIdentity(SPOOL, 16384, copy, TargetMode(log=LOG)))


def append(sink: DeltaSink, number: int, position: int) -> None:
    """The batch of a task, from the position that the log has."""
    t = changes()
    t.position = position
    t.insert(row(number))
    log = writer(sink)
    if (log.position() or 0) < position:
        log.append(LOG.rows([t.build()], COLUMNS).to_batches(), COLUMNS, Lsn(position))
        log.maintain([])


def add_column(sink: DeltaSink) -> None:
    log = writer(sink)
    log.position()
    if log.copy_number() == 2:  # what is done
        return
    log.alter([AddedColumn(pa.field("n", pa.int64()), pa.scalar(7, pa.int64()))], ())


def copy_again(sink: DeltaSink) -> None:
    writer(sink, copy=2).load(batches(row(8), row(9)), Lsn(200))


def kinds(sink: DeltaSink) -> list[tuple[int, str, int | None]]:
    table = DeltaTable(sink.location("public", "t"), storage_options=sink.storage_options)
    rows = pa.RecordBatchReader.from_stream(table.scan()).read_all().to_pylist()
    rows.sort(key=lambda each: (each["_commit_version"], each["_ordinal"], each["id"] or 0))
    return [(each["_commit_version"], each["_change_type"], each["id"]) for each in rows]


def work(sink: DeltaSink, armed: str) -> None:
    """What a process does until it is killed."""
    failpoints.arm(armed)
    append(sink, 2, 110)
    add_column(sink)
    copy_again(sink)


ALL = [
    (100, "snapshot", None),
    (100, "insert", 1),
    (110, "insert", 2),
    (110, "add_column", None),
    (200, "snapshot", None),
    (200, "insert", 8),
    (200, "insert", 9),
]
KILLS = [
    f"{place}=kill@{number}"
    for place in ("delta.written", "delta.before_commit", "delta.after_commit")
    for number in (2, 3)
]


def killed_and_repeated(sink: DeltaSink, armed: str, context: str) -> None:
    writer(sink).load(batches(row(1)), Lsn(100))
    process = multiprocessing.get_context(context).Process(target=work, args=(sink, armed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(sink, "")
    assert kinds(sink) == ALL


@pytest.mark.parametrize("armed", KILLS)
def test_a_killed_attempt_is_repeated_once_on_a_disk(tmp_path: Path, armed: str) -> None:
    killed_and_repeated(DeltaSink(f"{tmp_path}/{{table}}"), armed, "fork")


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.parametrize("armed", ["delta.before_commit=kill@2", "delta.after_commit=kill@3"])
def test_a_killed_attempt_is_repeated_once_in_a_store(s3_store: ObjectStore, armed: str) -> None:
    url = f"s3://lake/{uuid.uuid4()}/{{table}}"
    sink = DeltaSink(url, storage_options=s3_store.options)
    killed_and_repeated(sink, armed, "spawn")


def test_small_files_are_joined_without_a_data_change(tmp_path: Path) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}")
    writer(sink).load(batches(row(0)), Lsn(100))
    for number in range(1, 20):
        append(sink, number, 100 + number)
    log = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))
    joined = [path.read_text() for path in log if '"OPTIMIZE"' in path.read_text()]
    assert joined
    assert not any('"dataChange":true' in text for text in joined)
    others = [path.read_text() for path in log if path.read_text() not in joined]
    assert not any('"remove"' in text for text in others)
    assert [number for _, kind, number in kinds(sink) if kind == "insert"] == [*range(20)]


def test_a_log_with_rules_of_others_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}")
    writer(sink).load(batches(row(1)), Lsn(100))
    table = DeltaTable(tmp_path / "t")
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableError, match=r"appendOnly, which pgsluice does not support"):
        append(sink, 2, 110)


@pytest.mark.parametrize("seed", range(4))
def test_a_log_rebuilds_each_position_that_its_retention_has_kept(
    tmp_path: Path, seed: int
) -> None:
    """Random changes, copies, TRUNCATEs and maintenance with a retention of no time: from the
    newest copy or TRUNCATE on, the table is what it was."""
    chance, position, copy = random.Random(seed), 100, 1
    mode = TargetMode(log=LOG, log_retention_s=0)
    sink = DeltaSink(
        f"{tmp_path}/{{table}}", partition_by={"public.t": ("year(_commit_timestamp)",)}
    )
    table: dict[int, dict[str, Any]] = {1: row(1)}
    moments = [(position, [*table.values()])]
    kept_from = position

    def log() -> LogWriter:
        return LogWriter(sink, TABLE, TargetIdentity(SPOOL, 16384, copy, mode))

    log().load(batches(row(1)), Lsn(position))
    for _ in range(40):
        position += 10
        if chance.random() < 0.1:
            copy, kept_from = copy + 1, position
            log().load(batches(*table.values()), Lsn(position))
        else:
            t = changes()
            t.position = position
            for _ in range(chance.randint(1, 3)):
                id_ = chance.randint(1, 6)
                if chance.random() < 0.1:
                    table.clear()
                    t.truncate()
                    kept_from = position
                elif id_ not in table:
                    table[id_] = row(id_, position, f"{position} {id_}")
                    t.insert(table[id_])
                elif chance.random() < 0.3:
                    del table[id_]
                    t.delete({"id": id_})
                else:
                    big = table.pop(id_)["big"]
                    new = id_ if chance.random() < 0.7 else max(table, default=6) + 1
                    table[new] = row(new, position, big)
                    t.update(row(new, position, ABSENT), old=None if new == id_ else {"id": id_})
            writer = log()
            writer.position()
            writer.append(LOG.rows([t.build()], COLUMNS).to_batches(), COLUMNS, Lsn(position))
        moments.append((position, [*table.values()]))
        if chance.random() < 0.5:
            log().maintain(())
    log().maintain(())
    read = pa.RecordBatchReader.from_stream(DeltaTable(f"{tmp_path}/t").scan()).read_all()
    assert min(read["_commit_version"].to_pylist()) > 100 or kept_from == 100
    kept = [moment for moment in moments if moment[0] >= kept_from]
    for at, rows in [kept[0], kept[-1], *chance.sample(kept, min(8, len(kept)))]:
        found = by_loop(read.cast(read.schema), ["id"], at)
        assert found == sorted(rows, key=lambda each: repr([*each.values()]))


def test_a_log_keeps_what_is_younger_than_its_retention(tmp_path: Path) -> None:
    sink = DeltaSink(f"{tmp_path}/{{table}}")
    for retention_s, files in ((None, 4), (3600.0, 4), (0.0, 2)):
        mode = TargetMode(log=LOG, log_retention_s=retention_s)
        for copy in (1, 2):
            log = LogWriter(sink, TABLE, TargetIdentity(SPOOL, 16384, copy, mode))
            log.load(batches(row(copy)), Lsn(100 * copy))
            log.maintain(())
        assert len(DeltaTable(f"{tmp_path}/t").file_uris()) == files
        assert log.position() == 200
