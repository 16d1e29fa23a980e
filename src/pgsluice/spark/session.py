"""A Spark session for what pgsluice runs itself: the command line, the demo, tests.

The defaults make one machine quick and quiet; every setting of the user wins. On a cluster
the platform makes the session, and nothing here is needed but :func:`require_spark`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.errors import ConfigError
from pgsluice.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_SPARK = (4, 2)
_LOG4J = Path(__file__).with_name("log4j2.properties")
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
TASK_ATTEMPTS = 3


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


def build_session(settings: Mapping[str, str], app_name: str) -> SparkSession:
    """Start a session, or take the one that is running.

    Args:
        settings: any Spark settings; they win over the defaults.
        app_name: what Spark's logs call it.

    Raises:
        ConfigError: no fit pyspark, or no Java.
    """
    require_spark()
    require_java()
    from pyspark.sql import SparkSession

    # Else the workers are whatever python3 the PATH has, without pgsluice.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(app_name)
    for name, value in merged_settings(settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def merged_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings over the defaults that suit their master."""
    merged = {**DEFAULTS, **settings}
    master = merged["spark.master"]
    if is_local(master):
        merged = {**LOCAL_DEFAULTS, **merged, "spark.master": _with_attempts(master)}
        if "spark.driver.extraJavaOptions" not in settings:
            # Also what Spark prints before a session exists goes through our quiet file.
            merged["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOG4J}"
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
