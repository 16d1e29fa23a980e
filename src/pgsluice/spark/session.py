"""A Spark session for what pgsluice runs itself: the command line, the demo, tests.

The defaults make one machine quick and quiet; every setting of the user wins. On a cluster
the platform makes the session, and nothing here is needed but :func:`require_spark`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_SPARK = (4, 2)
_LOG4J_FLAG = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

DEFAULTS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A batch's tasks are single tables; what shuffles is small.
    "spark.sql.shuffle.partitions": "2",
    # A query's runner connects back to the JVM; several starting at once on a small machine
    # need longer than Spark's ten seconds.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.streaming.stopTimeout": "60s",
    # One metrics line an idle query is enough.
    "spark.sql.streaming.noDataProgressEventInterval": "10000",
}
LOCAL_DEFAULTS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Two small renames a batch instead of Hadoop's FileContext: 40 ms less on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.minBatchesToRetain": "10",
}
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Of a local session's JVM. It only plans and collects small jobs; the rows are in Python. The
optimising compiler and G1 would take the cores that the tasks need: without them a batch takes
0.4 instead of 0.6 s where two cores do everything."""
TASK_ATTEMPTS = 3
_LOG_BYTES = 4 << 20
_LOOK_S = 0.1


def require_spark() -> None:
    """See that a Spark is there that can stream from Python.

    Raises:
        ConfigError: pyspark is missing or older than 4.2.
    """
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError(
            "pyspark is not installed",
            hint="pip install 'pgsluice[spark]', or use the platform's own pyspark, 4.2 or newer",
        ) from error
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < OLDEST_SPARK:
        raise ConfigError(
            f"pyspark {pyspark.__version__} cannot stream from a Python source with limits",
            hint="pgsluice needs Spark 4.2 or newer",
            version=pyspark.__version__,
        )


def build_session(
    settings: Mapping[str, str], app_name: str, *, log: Path | None = None
) -> SparkSession:
    """Start a session, or take the one that is running.

    Args:
        settings: any Spark settings; they win over the defaults.
        app_name: what Spark's logs call it.
        log: the file that takes a new JVM's stderr, which else is ours.

    Raises:
        ConfigError: no fit pyspark, or no Java.
    """
    require_spark()
    require_java()
    from pyspark.sql import SparkSession

    # Else the workers are whatever python3 the PATH has, without pgsluice.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    merged = merged_settings(settings)
    if log is not None:
        _launch(merged, app_name, log)
    builder = SparkSession.builder.appName(app_name)
    for name, value in merged.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start_session(
    settings: Mapping[str, str], app_name: str, log: Path, look: Callable[[], object]
) -> SparkSession:
    """Start a session of our own, in a thread, so that it can be given up.

    The JVM takes seconds to come up and listens to nobody meanwhile. Built in a thread, PySpark
    also leaves our handler of SIGINT alone.

    Args:
        settings: as for :func:`build_session`.
        app_name: as for :func:`build_session`.
        log: the file that takes what the JVM and its Python workers write to stderr, which
            would be stack traces on a user's terminal.
        look: called a few times a second until the session is up; what it raises ends the
            wait, and the session is stopped as soon as it is up.

    Raises:
        ConfigError: no fit pyspark, no Java, or a setting that Spark refuses.
        PgsluiceError: what ``look`` raises.
    """
    starting = _Starting(settings, app_name, log)
    starting.start()
    while starting.is_alive():
        try:
            look()
        except BaseException:
            starting.give_up()
            raise
        starting.join(_LOOK_S)
    return starting.session()


class _Starting(threading.Thread):
    def __init__(self, settings: Mapping[str, str], app_name: str, log: Path) -> None:
        super().__init__(name="pgsluice-spark", daemon=True)
        self._settings = settings
        self._app_name = app_name
        self._log = log
        self._lock = threading.Lock()
        self._is_given_up = False
        self._session: SparkSession | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            session = build_session(self._settings, self._app_name, log=self._log)
        except BaseException as error:
            self._error = error
            return
        with self._lock:
            self._session = session
            if not self._is_given_up:
                return
        session.stop()

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self._session is None:
                return
        self._session.stop()

    def session(self) -> SparkSession:
        if isinstance(self._error, PgsluiceError):
            raise self._error
        if self._error is not None or self._session is None:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise ConfigError(
                "Spark did not start",
                hint="\n".join([f"the end of {self._log}:", *said[-4:]]),
            ) from self._error
        return self._session


def _launch(settings: Mapping[str, str], app_name: str, log: Path) -> None:
    """Start the JVM and its context with a stderr that is a file.

    The session's builder would let the JVM write to ours.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if getattr(SparkContext, "_gateway", None) is not None:
        return  # of a session before: there is one a process
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(f"{log}.1")
    conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
    log.touch(mode=0o600)
    with log.open("ab") as file:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": file})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)


def merged_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings over the defaults that suit their master."""
    merged = {**DEFAULTS, **settings}
    master = merged["spark.master"]
    if is_local(master):
        merged = {**LOCAL_DEFAULTS, **merged, "spark.master": _with_attempts(master)}
        if "spark.driver.extraJavaOptions" not in settings:
            # Also what Spark prints before a session exists goes through our quiet file.
            merged["spark.driver.extraJavaOptions"] = " ".join((*JVM_FLAGS, _LOG4J_FLAG))
    else:
        merged.setdefault("spark.task.maxFailures", str(TASK_ATTEMPTS + 1))
    return merged


def is_local(master: str) -> bool:
    """Whether tasks run inside this machine's driver."""
    return master == "local" or master.startswith("local[")


def _with_attempts(master: str) -> str:
    """``local[n]`` as ``local[n,attempts]``: a local master retries no task by itself."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    if "," in master:
        return master
    return master.removesuffix("]") + f",{TASK_ATTEMPTS}]"
