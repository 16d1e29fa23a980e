"""Nothing waits by a clock that somebody can set.

A system's clock may be set back by an hour, and what waits until a time of day would wait an hour
longer. So waiting is counted by ``time.monotonic``, and what is due at a time that is stored, by
``subscription.batches.results.steady_now``. The modules below read the system's clock for other
things.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOMS = Path(__file__).parents[2] / "src" / "pgsluice"
SYSTEM_CLOCK = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
ALLOWED = {
    "capture/source/comparison.py": "the protocol's status has a time",
    "capture/receiving/receiver.py": "the protocol's status has a time",
    "capture/reporting.py": "when a state was written, for people",
    "cli/status_view.py": "how long ago, for people",
    "log_lines.py": "when a line was written, for its reader",
    "monitor/lags.py": "the lag in seconds",
    "monitor/live.py": "users read the time of day",
    "monitor/source_status.py": "since when capture reports nothing",
    "monitor/status.py": "when the status was read, for people",
    "preflight/slot.py": "users read since when the slot is not in use",
    "rejects/copied.py": "when a copied row was read, as the rejects table has it",
    "sinks/delta/log/commit.py": "times in the table's log",
    "sinks/delta/log/features.py": "times in the table's log",
    "sinks/delta/ruled/handle.py": "times in the table's log",
    "sinks/lake/merge/key_scan.py": "when rows were deleted, as the target has it",
    "sinks/lake/upkeep.py": "the age of files and of versions, which the log has by that clock",
    "sinks/delta/retention.py": "the age of files, which the log has by that clock",
    "sinks/lake/keys/index.py": "the age of files, which has that clock",
    "sinks/lake/row_cache.py": "the age of files, which has that clock",
    "spark/source/streaming/batch_ends.py": "the lag in seconds",
    "spool/notes.py": "the age of a file that another process has written",
    "spool/segments/retention.py": "the age of segments, by their files' times",
    "spool/object_storage.py": "the age of objects and of a file that capture has written",
    "spool/storage.py": "names by the hour, and whether a folder's time may still change",
    "subscription/batches/results.py": "the lag in seconds, where the steady clock begins",
    "subscription/batches/leftovers.py": "the age of files, perhaps of another process",
    "snapshots/snapshot.py": "when a snapshot was taken, for people",
    "subscription/copies/kept.py": "how long a snapshot has been held, for people",
    "subscription/running/run.py": "when a run read its configuration, for people",
    "subscription/running/reloading.py": "when a run read its configuration, for people",
    "subscription/copies/table_copies.py": "when a copy is begun again, for people",
    "subscription/verify.py": "when tables were verified, for people",
    "subscription/verifying/suspicious_tables.py": "the age of a verification",
}


def clocks(source: str) -> Iterator[str]:
    """The calls of a module that read the system's clock."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name(owner) | ast.Attribute(attr=owner), name):
                if (owner, name) in SYSTEM_CLOCK:
                    yield f"{owner}.{name}"
            case ast.ImportFrom(module="time", names=names):
                for alias in names:
                    if ("time", alias.name) in SYSTEM_CLOCK:
                        yield f"time.{alias.name}"


def test_the_system_clock_is_read_where_nothing_waits_for_it() -> None:
    readers = {
        str(path.relative_to(ROOMS)): found
        for path in sorted(ROOMS.rglob("*.py"))
        if (found := sorted(set(clocks(path.read_text()))))
    }
    others = {module: calls for module, calls in readers.items() if module not in ALLOWED}
    assert others == {}, "count waiting by time.monotonic, or say here what the time is for"
    assert sorted(set(ALLOWED) - readers.keys()) == []


def test_every_way_to_the_clock_is_found() -> None:
    source = """
import time, datetime as dt
from time import time_ns
from datetime import datetime, date
a = time.time, time.monotonic()
b = datetime.now(), dt.datetime.utcnow(), date.today()
"""
    assert sorted(clocks(source)) == [
        "date.today", "datetime.now", "datetime.utcnow", "time.time", "time.time_ns",
    ]  # fmt: skip
