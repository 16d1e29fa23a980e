"""Spark sessions that pgsluice starts itself: for the command line, the demo and tests.

The defaults make a session on one machine quick and quiet; the user's settings override them.
On a cluster the platform starts the session, and only
:func:`~pgsluice.spark.installed.require_spark` is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgsluice.errors import PgsluiceError, SparkFailed
from pgsluice.spark.errors import spark_errors, summarize_error
from pgsluice.spark.installed import require_spark
from pgsluice.spark.session.java import require_java
from pgsluice.spark.session.master import DEFAULT_MASTER, is_local
from pgsluice.system.processes import Part, has_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J_FLAG = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"

DEFAULTS: Mapping[str, str] = {
    "spark.master": DEFAULT_MASTER,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Python processes that connect to a busy JVM wait longer than 15 s for its answer.
    "spark.python.authenticate.socketTimeout": "60s",
}
LOCAL_DEFAULTS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags for the JVM of a local session, which only plans and collects small jobs; Python reads the
rows. The optimising compiler and G1 would use the cores that tasks need: on two cores, a batch
takes 0.4 s without them and 0.6 s with them."""
TASK_ATTEMPTS = 3
_JVM_END_S = 2.0
"""How long to wait for the JVM's end after a failed call, in seconds."""
_LOST_JVM_END_S = 6.0
"""The same after a call without an answer, in seconds. The JVM's connections are closed first; its
end takes seconds on a busy machine. A run that has to stop meanwhile has a few seconds more."""


def build_session(settings: Mapping[str, str], app_name: str) -> SparkSession:
    """Start a session, or return the active one.

    Args:
        settings: Spark settings, which override the defaults.
        app_name: the application's name in Spark's logs.

    Raises:
        ConfigError: PySpark or Java is missing or too old.
    """
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for name, value in merged_settings(settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare() -> None:
    """Check the requirements of a session, and let its workers use this Python.

    Raises:
        ConfigError: PySpark or Java is missing or too old.
    """
    require_spark()
    require_java()
    # Otherwise the workers would be the python3 of PATH, which may lack pgsluice.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def raise_if_ended(within_s: float = 0.0) -> None:
    """Raise an error if PySpark started a JVM in this process and it has ended.

    Args:
        within_s: how long to wait for its end, which its connections show a little earlier, in
            seconds.

    Raises:
        SparkFailed: it has ended.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # of a JVM that this process started
    if process is None:
        return
    try:
        code = process.wait(within_s)
    except subprocess.TimeoutExpired:
        return
    raise SparkFailed(
        has_ended(Part.JVM, process.pid, code),
        hint="start pgsluice again; no data is lost. If dmesg shows that the operating system "
        "killed the process for lack of memory, give the machine more memory, or Spark less "
        'memory: "spark.driver.memory" in [spark]',
    )


def refuse_spark_errors(error: Exception) -> None:
    """Raise SparkFailed if Spark caused an error of a session's work.

    Without its JVM any call may fail, in any way.

    Raises:
        SparkFailed: the JVM has ended, or a job failed.
    """
    if not isinstance(error, PgsluiceError):
        raise_if_ended(_LOST_JVM_END_S if _is_unanswered(error) else _JVM_END_S)
    if isinstance(error, spark_errors()):
        raise SparkFailed(f"a Spark job failed: {summarize_error(error)}") from error


def _is_unanswered(error: Exception) -> bool:
    """Whether a call to the JVM may have got no answer; a Java exception is an answer."""
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError)


def forget_session() -> None:
    """End the JVM of a failed session, so that this process can start another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    with suppress(Exception):
        gateway.shutdown()
    if (process := getattr(gateway, "proc", None)) is not None:
        process.kill()
        process.wait()
    # What PySpark keeps for the whole process, and clears only if the JVM answers.
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        setattr(SparkSession, name, None)


def merged_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The defaults for the master, overridden by the given settings."""
    merged = {**DEFAULTS, **settings}
    master = merged["spark.master"]
    if is_local(master):
        merged = {**LOCAL_DEFAULTS, **merged, "spark.master": _with_attempts(master)}
        if "spark.driver.extraJavaOptions" not in settings:
            # Our logging configuration then also holds before a session exists.
            merged["spark.driver.extraJavaOptions"] = " ".join((*JVM_FLAGS, _LOG4J_FLAG))
    else:
        merged.setdefault("spark.task.maxFailures", str(TASK_ATTEMPTS + 1))
    return merged


def _with_attempts(master: str) -> str:
    """``local[n]`` as ``local[n,attempts]``: otherwise a local master never retries a task."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    if "," in master:
        return master
    return master.removesuffix("]") + f",{TASK_ATTEMPTS}]"
