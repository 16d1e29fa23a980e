"""A transaction that is larger than memory should be, over the whole way."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from tests.support.pipeline import Pipeline

CAPTURE_BYTES = 300 * 2**20


def replicate(one: Pipeline, rows: int, *, segment_bytes: int, kills: int = 0) -> int:
    """One transaction of so many rows, and a little around it.

    Args:
        one: where to.
        rows: of the transaction.
        segment_bytes: of the spool.
        kills: how often capture is killed while the transaction comes in.

    Returns:
        capture's peak in bytes.
    """
    shop = one.database
    one.write(spool=f"segment_bytes = {segment_bytes}")
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(12,2), c text, d timestamptz)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (0, 0, 0, 'before', now())",
    )
    one.once()
    shop.execute(
        f"""BEGIN;
        INSERT INTO t SELECT i, i, i / 100.0, 'row ' || i, now() FROM generate_series(1, {rows}) i;
        UPDATE t SET a = -1 WHERE id % 10 = 0;
        DELETE FROM t WHERE id % 100 = 1;
        COMMIT""",
        "INSERT INTO other VALUES (1)",
        "UPDATE t SET c = 'after' WHERE id < 10",
    )
    for parts in range(2, 2 + 2 * kills, 2):
        killed_after(one, parts)
    peak = received(one)
    parts = list(one.spool.rglob("parts/**/*.arrow"))
    assert len(parts) > 5, "it came in parts"
    one.once()
    one.assert_equal("t", "other")
    return peak


def killed_after(one: Pipeline, parts: int) -> None:
    """``pgsluice capture --once``, killed when it has written so many parts."""
    before = set(one.spool.rglob("parts/*/*.arrow"))
    with subprocess.Popen(capture_once(one), stderr=subprocess.DEVNULL) as process:
        while len(set(one.spool.rglob("parts/*/*.arrow")) - before) < parts:
            assert process.poll() is None, "it ended before it was killed"
        process.kill()


def capture_once(one: Pipeline) -> list[str]:
    return [sys.executable, "-m", "pgsluice", "capture", str(one.path), "--once"]


def received(one: Pipeline) -> int:
    """``pgsluice capture --once`` as a process; the most memory that it ever had, in bytes."""
    with subprocess.Popen(
        capture_once(one), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read()
    return peak


def _peak(pid: int) -> int:
    """VmHWM, the kernel's own high-water mark; where there is none, what it has now."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0
    except ProcessLookupError:
        return 0
    except FileNotFoundError:
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0
