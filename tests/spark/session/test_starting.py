"""A context that starts in a thread, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import HANGS_S
from tests.support.watched_imports import imported_by_threads, watching

PROGRAM = """
import sys
import threading
import time
from pathlib import Path

from pgsluice.spark.session import starting_context
from pgsluice.spark.session.starting_context import StartingContext

build_session, is_made = starting_context.build_session, threading.Event()

def build(*settings):
    is_made.set()
    while not starting.has_ended:  # end() waits for the context
        time.sleep(0.01)
    return build_session(*settings)

starting_context.build_session = build
starting_context.has_jvm = lambda: True  # as in a program of the user's
settings = {"spark.master": "local[1]"}
starting = StartingContext(settings, "t", Path(sys.argv[1]), owns_process=False)
starting.begin()
threading.Thread(target=starting.wait, args=[lambda: None], daemon=True).start()
is_made.wait()
starting.end()

from pyspark import SparkContext
from pyspark.sql import SparkSession

assert SparkContext._active_spark_context is None
assert SparkSession.getActiveSession() is None
assert not starting.is_alive()
"""
KILLED = """

starting_context.build_session = build_session
starting = StartingContext(settings, "t", Path(sys.argv[1]), owns_process=False)
starting.begin()
starting.wait(lambda: None)
process = SparkContext._gateway.proc
process.kill()
process.wait()
starting.end()
assert SparkContext._active_spark_context is None
"""


def test_a_context_that_is_still_made_or_has_lost_its_jvm_ends_with_its_run(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + KILLED, tmp_path / "spark.log"],
        env={**os.environ, **watching(imports)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert imported_by_threads(imports) == []


REFUSED = """
import sys
from pathlib import Path

from pgsluice.errors import ConfigError
from pgsluice.spark.session.starting_context import StartingContext

starting = StartingContext({"spark.master": "local[x]"}, "t", Path(sys.argv[1]), owns_process=True)
try:
    starting.wait(lambda: None)
except ConfigError as error:
    print(error.what)
"""


def test_a_setting_that_spark_refuses_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED, tmp_path / "spark.log"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=True)
    assert done.stdout.startswith("Spark did not start: ")
    assert "local[x" in done.stdout
