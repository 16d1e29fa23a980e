"""Programs that read a spool (Spark tasks, tools, users' scripts) need no database driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "import sys, {room}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"


@pytest.mark.parametrize("room", ["pgsluice.spool", "pgsluice.columnar"])
def test_importing_the_room_loads_neither_psycopg_nor_spark(room):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(room=room)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "pyarrow" in loaded
    assert not loaded & {"psycopg", "psycopg_binary", "pyspark", "deltalake", "pydantic", "pandas"}
