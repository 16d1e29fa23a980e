"""Transactions that are larger than a task's memory, with full figures."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bench.memory import as_text, watched
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

ROWS = 5_000_000
WORKER_BYTES = 10**9
TRANSACTIONS = (
    # All rows are stored in the same number of bytes, so they keep their order in the table when
    # they are updated: none fits into space that a longer one has left.
    """INSERT INTO t
       SELECT i, i, CASE WHEN i % 100 = 0 THEN repeat(md5(i::text), 70) ELSE repeat('x', 17) END,
              'row ' || lpad(i::text, 8, '0')
       FROM generate_series({rows}, 1, -1) i""",
    "UPDATE t SET a = a + 1",
    # The rows lie by falling ids, so no two have the same id, if the scan begins at the first row.
    "SET synchronize_seqscans = off; UPDATE t SET id = id + 1",
    """BEGIN; DELETE FROM t WHERE id % 2 = 0; TRUNCATE u;
       INSERT INTO t SELECT i, 0 FROM generate_series(-{rows} / 10, -1) i;
       UPDATE t SET a = 7 WHERE id % 3 = 0; COMMIT""",
    # Small changes of rows with large values, which the server does not send.
    """INSERT INTO w SELECT i, 0, repeat(md5(i::text), 312)
       FROM generate_series(1, {rows} / 50) i""",
    "UPDATE w SET a = a + 1",
    "UPDATE w SET id = id + {rows}",
)


@pytest.mark.parametrize("merge", ["on_write", "on_read"])
def test_transactions_of_five_million_rows(
    merge: str, pipeline: MakePipeline, report: Report, seed: int
) -> None:
    what = f"transactions larger than memory, {merge}"
    with report.row(what, seed) as row, EmbeddedServer(18) as server:
        shop = Database(server, "postgres")
        one = pipeline(shop)
        text = one.path.read_text().replace('{table}" }', f'{{table}}", merge = "{merge}" }}')
        one.path.write_text(text)
        shop.execute(
            "CREATE TABLE t (id int PRIMARY KEY, a int, large text, b text)",
            "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "INSERT INTO u VALUES (1)",
            "CREATE TABLE w (id int PRIMARY KEY, a int, large text)",
            "ALTER TABLE w ALTER large SET STORAGE EXTERNAL",
        )
        peaks: dict[str, int] = {}
        began = time.monotonic()
        for transaction in TRANSACTIONS:
            shop.execute(transaction.format(rows=ROWS))
            with once(one) as process, watched(process.pid) as seen:
                assert process.wait(900) == 0, one.log()[-3000:]
            peaks = {kind: max(seen.get(kind, 0), peaks.get(kind, 0)) for kind in {*seen, *peaks}}
        one.assert_equal("t", "u", "w")
        row["figures"] = (
            f"{ROWS:,} rows inserted, updated, their keys changed, half deleted;"
            f" {ROWS // 50:,} rows of 10 kB updated, their keys changed"
        )
        row["shown"] = f"equal after {time.monotonic() - began:.0f} s; peaks: {as_text(peaks)}"
        assert peaks["worker"] < WORKER_BYTES


@contextmanager
def once(one: Pipeline) -> Iterator[subprocess.Popen[bytes]]:
    """``pgsluice run --once`` as a process."""
    with (
        (one.folder / "run.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "pgsluice", "run", "--once", str(one.path)],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        yield process
