"""Programs that read a spool (Spark tasks, tools, users' scripts) need no database driver, and
other processes load what they start with."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from {room} import {names}
print(*sorted({{name.partition('.')[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize(
    ("room", "names"),
    [
        ("pgsluice.spool", "Spool, SpoolReader, SpoolWriter, find_record, relations_after"),
        ("pgsluice.columnar", "*"),
    ],
)
def test_importing_the_room_loads_neither_psycopg_nor_spark(room, names):
    program = LOADED.format(room=room, names=names)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "pyarrow" in loaded
    assert not loaded & {"psycopg", "psycopg_binary", "pyspark", "deltalake", "pydantic", "pandas"}


def test_a_run_loads_what_the_jvm_does_not_wait_for_beside_it():
    starts = "pgsluice.cli.app, pgsluice.monitor.live, pgsluice.subscription.running.run"
    command = f"import sys, {starts}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"numpy", "pyarrow", "pyspark", "psycopg", "deltalake"}


def test_capture_which_starts_beside_copies_loads_nothing_that_decodes():
    command = "import sys, pgsluice.capture.child; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "pgsluice.types.definition" in loaded
    assert not loaded & {"pyarrow.compute", "pgsluice.types.registry", "pyspark", "deltalake"}
