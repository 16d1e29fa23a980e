"""Starts the JVM of a session, and that of ``pgsluice run`` so that it is ready sooner.

Four things cost seconds of CPU at each start, and ``pgsluice run`` on one machine needs none:

- The JVM looks for each of 10,000 classes in nearly 300 jars, one after the other. The jars that
  have most of these classes come first in its class path.
- Spark's Python processes import PySpark from ``python/lib/pyspark.zip`` of ``SPARK_HOME``, which
  is compiled each time. In a ``SPARK_HOME`` without that file, they import the installed
  package.
- Spark starts four processes to look for data sources in the installed packages. It does not if
  there is no Python of the driver; a task brings the path of its own Python.
- Spark's scripts start a JVM that only prints the command for the real one. It needs no optimising
  compiler.

A Spark that is not PySpark's own (``SPARK_HOME`` is set) is started as it is.
"""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_LARGEST_LOG_BYTES = 4 << 20
_CLASS_PATH = "spark.driver.extraClassPath"
_HOME = "SPARK_HOME"
_DRIVERS_PYTHON = "PYSPARK_DRIVER_PYTHON"
_SCRIPT_FLAGS = {"SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_FIRST_JARS = (
    "spark-catalyst_", "scala-library-", "spark-core_", "scala-reflect-", "spark-sql-api_",
    "spark-sql_", "log4j-", "jackson-", "janino-", "commons-compiler-", "hadoop-client-", "spark-",
    "arrow-", "netty-", "json4s-", "antlr4-runtime-", "py4j-", "ivy-", "slf4j-", "metrics-", "lz4-",
    "icu4j-", "jakarta.",
)  # fmt: skip
"""How the names of the jars begin from which a session loads most of its classes."""


def launch(settings: Mapping[str, str], app_name: str, log: Path, *, is_quick: bool) -> None:
    """Start the JVM and its Spark context, with the JVM's stderr in a file.

    The builder of sessions would let the JVM write to this process's stderr. A process has one JVM:
    if an earlier session has started it, this does nothing.

    Args:
        settings: all settings of the session.
        app_name: the application's name in Spark's logs.
        log: the file.
        is_quick: for a session on this machine whose process runs nothing but pgsluice. It does not
            know the data sources of installed packages by their names.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if getattr(SparkContext, "_gateway", None) is not None:
        return
    if log.exists() and log.stat().st_size > _LARGEST_LOG_BYTES:
        log.replace(f"{log}.1")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    log.touch(mode=0o600)
    spark = _spark_of_pyspark() if is_quick else None
    if spark is not None:
        settings = {**settings, _CLASS_PATH: _class_path(spark, settings.get(_CLASS_PATH))}
    conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
    with log.open("ab") as file, _quick_scripts(spark):
        try:
            gateway = launch_gateway(conf, popen_kwargs={"stderr": file})  # type: ignore[no-untyped-call]
        except Exception as error:
            # PySpark's frames refer to the process: it stays a zombie until they let it go.
            traceback.clear_frames(error.__traceback__)
            raise
    context: Any = SparkContext(conf=conf, gateway=gateway)
    # It would print a traceback when the JVM ends: the error says it.
    context._accumulatorServer.handle_error = lambda *_: None


def _spark_of_pyspark() -> Path | None:
    """The folder of the Spark that was installed with PySpark; None if another one is chosen."""
    spec = find_spec("pyspark")
    if _HOME in os.environ or os.name != "posix" or spec is None or spec.origin is None:
        return None
    spark = Path(spec.origin).parent
    return spark if (spark / "jars").is_dir() else None


def _class_path(spark: Path, of_user: str | None) -> str:
    """The user's class path, then the jars with most of the classes, then all jars."""
    jars = spark / "jars"
    first = [str(jar) for start in _FIRST_JARS for jar in sorted(jars.glob(f"{start}*.jar"))]
    return os.pathsep.join([*([of_user] if of_user else []), *dict.fromkeys(first), f"{jars}/*"])


@contextmanager
def _quick_scripts(spark: Path | None) -> Iterator[None]:
    """A block in which Spark's scripts find what they need of ``SPARK_HOME``, and nothing else.

    The JVM has every jar from its class path: nobody needs that folder once the JVM runs.
    """
    if spark is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pgsluice-spark-") as folder:
        home = Path(folder)
        for name in ("bin", "conf"):
            if (spark / name).is_dir():
                (home / name).symlink_to(spark / name)
        (home / "jars").mkdir()
        for jar in (spark / "jars").glob("spark-launcher_*.jar"):
            (home / "jars" / jar.name).symlink_to(jar)
        before = dict(os.environ)
        os.environ.update({**_SCRIPT_FLAGS, **before, _HOME: folder})
        os.environ[_DRIVERS_PYTHON] = str(home / "none")
        try:
            yield
        finally:
            for name in (*_SCRIPT_FLAGS, _HOME, _DRIVERS_PYTHON):
                os.environ.pop(name)
                if name in before:
                    os.environ[name] = before[name]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether to log: not the traceback of a call of a JVM that has ended, since an error says it.

    py4j logs these by the root logger.
    """
    return record.module != "java_gateway"
