"""The installed version of Spark, and whether it does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from pgsluice.errors import ConfigError
from pgsluice.spark.versions import OLDEST, SparkVersion


def spark_version() -> SparkVersion:
    """PySpark's version, without its import if its package says it: that takes 0.3 s.

    Raises:
        ConfigError: it is not installed, or has a version without numbers.
    """
    text = _version()
    try:
        return SparkVersion.parse(text)
    except ValueError as error:
        raise ConfigError(f'pyspark has an unknown version: "{text}"') from error


def _version() -> str:
    if "pyspark" not in sys.modules:
        with suppress(PackageNotFoundError):
            return version("pyspark")
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError(
            "the Python package pyspark is not installed",
            hint="pip install 'pgsluice[spark]', or install the pyspark of your platform, version "
            f"{OLDEST} or newer",
        ) from error
    return str(pyspark.__version__)


def is_measured() -> bool:
    """Whether the installed PySpark is one on which fast starts were measured."""
    try:
        return spark_version().is_measured
    except ConfigError:
        return False


def require_spark() -> None:
    """Check that PySpark is installed and can run the tasks of ``pgsluice run``.

    Raises:
        ConfigError: it is not installed, or too old.
    """
    if (found := spark_version()) < OLDEST:
        raise ConfigError(
            f"the installed pyspark {found} is too old: pgsluice needs Spark {OLDEST} or newer",
            hint="pip install --upgrade 'pgsluice[spark]'",
        )


def refuse_connect(settings: Mapping[str, str]) -> None:
    """Refuse a session of Spark Connect, which has no jobs of tasks.

    Args:
        settings: the settings of the session that a run would start.

    Raises:
        ConfigError: Spark would start such a session, or this process has one.
    """
    mode = settings.get("spark.api.mode", os.environ.get("SPARK_API_MODE", ""))
    if (
        "spark.remote" in settings
        or mode.lower() == "connect"
        or "SPARK_REMOTE" in os.environ
        or "SPARK_CONNECT_MODE_ENABLED" in os.environ  # PySpark sets it with such a session
    ):
        raise ConfigError(
            "`pgsluice run` cannot use Spark Connect, which does not offer the jobs that it needs",
            hint="use a classic Spark session: unset SPARK_REMOTE, SPARK_API_MODE and "
            "spark.remote, and name a cluster with spark.master",
        )


def require_data_sources() -> None:
    """Check that ``format("pgoutput")`` works.

    Raises:
        ConfigError: PySpark is not installed, or has no data sources in Python.
    """
    if not (found := spark_version()).has_data_sources:
        raise ConfigError(
            f'format("pgoutput") needs Spark 4.0 or newer, but this is Spark {found}',
            hint=f"use Spark 4.0 or newer; or use `pgsluice run CONFIG`, which works with Spark "
            f"{found} and keeps Delta tables equal to the source's tables",
        )
