"""Spark with Delta's own jar, as another program that works on the same tables.

It is a process of its own with one session, because the tests' session is without that jar. It
takes a line of JSON for each request and answers with one. ``PGSLUICE_SPARK_PYTHON`` names the
Python with another version of Spark (``make matrix ARGS=--spark`` makes environments).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import pyarrow as pa
from pyarrow import feather

PYTHON = os.environ.get("PGSLUICE_SPARK_PYTHON", sys.executable)
PACKAGES = {
    "4.0": "io.delta:delta-spark_2.13:4.0.1",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Delta's package, by the version of Spark."""
PACKAGE = PACKAGES["4.2"]
EXCLUDED = ",".join(
    f"{group}:*"
    for group in (
        "com.fasterxml.jackson.core",
        "com.fasterxml.jackson.datatype",
        "com.github.luben",
        "com.google.code.findbugs",
        "commons-logging",
        "commons-pool",
        "io.airlift",
        "javax.annotation",
        "org.apache.hadoop",
        "org.apache.logging.log4j",
        "org.apache.parquet",
        "org.locationtech.jts",
        "org.roaringbitmap",
        "org.slf4j",
        "org.xerial.snappy",
    )
)
"""What Delta's package brings and Spark has: 70 MB, which each session would copy."""
_VERSION = "from importlib.metadata import version; print(version('pyspark'))"
S3A_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(
        f"software.amazon.awssdk:{name}:2.35.4"
        for name in ("s3", "s3-transfer-manager", "sts", "apache-client", "url-connection-client")
    ),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
"""For ``s3a://``: hadoop-aws of Spark's Hadoop, and of the SDK what it needs instead of the whole,
which is 600 MB."""
_S3A_EXCLUDED = (
    EXCLUDED.replace("org.apache.hadoop:*", "org.apache.hadoop:hadoop-client-api")
    + ",org.apache.hadoop:hadoop-client-runtime,software.amazon.awssdk:bundle,io.netty:*"
)
_ANSWER = "delta-spark: "
_END_S = 60.0

_PROGRAM = """
import json, sys
import pyarrow.feather
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = (
    builder
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    .config("spark.databricks.delta.vacuum.parallelDelete.enabled", "false")
    # Otherwise a VACUUM or RESTORE has ten thousand tasks.
    .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
for line in sys.stdin:
    request = json.loads(line)
    answer = {}
    try:
        if "checkpoint" in request:
            logs.forTable(spark._jsparkSession, request["checkpoint"]).checkpoint()
        else:
            frame = spark.sql(request["sql"])
            if "out" in request:
                rows = frame.toArrow()
                pyarrow.feather.write_feather(rows, request["out"], compression="uncompressed")
    except Exception as error:
        answer = {"error": str(error)[:2000]}
    print("delta-spark: " + json.dumps(answer), flush=True)
"""


@cache
def spark_version() -> str:
    """The version of the process' Spark, as "4.2"."""
    code = [PYTHON, "-c", _VERSION]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    return ".".join(done.stdout.split(".")[:2])


class DeltaSparkError(Exception):
    """A statement failed in Spark."""


class DeltaSpark:
    """The session of that process; made by :func:`delta_spark`."""

    def __init__(self, requests: IO[str], answers: IO[str], folder: Path) -> None:
        self._requests = requests
        self._answers = answers
        self._out = folder / "rows"

    def sql(self, statement: str) -> None:
        """Run a statement.

        Raises:
            DeltaSparkError: it failed.
        """
        self._ask({"sql": statement})

    def rows(self, statement: str) -> list[dict[str, object]]:
        """The rows of a query."""
        self._ask({"sql": statement, "out": str(self._out)})
        rows: list[dict[str, object]] = feather.read_table(self._out, memory_map=False).to_pylist()
        return rows

    def table(self, statement: str) -> pa.Table:
        """The rows of a query as Arrow columns."""
        self._ask({"sql": statement, "out": str(self._out)})
        return feather.read_table(self._out, memory_map=False)

    def checkpoint(self, location: str) -> None:
        """Write a checkpoint of a table."""
        self._ask({"checkpoint": location})

    def _ask(self, request: dict[str, str]) -> None:
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        for line in self._answers:
            if line.startswith(_ANSWER):
                answer = json.loads(line.removeprefix(_ANSWER))
                if "error" in answer:
                    raise DeltaSparkError(answer["error"])
                return
        raise DeltaSparkError("Spark has ended")


@contextmanager
def delta_spark(folder: Path, store: Mapping[str, str] | None = None) -> Iterator[DeltaSpark]:
    """Start the process, and end it.

    Args:
        folder: for its files.
        store: options of S3, as :mod:`tests.support.object_stores` has them; its tables are
            ``s3a://``.
    """
    package = PACKAGES[spark_version()]
    settings = {"spark.jars.packages": package, "spark.jars.excludes": EXCLUDED}
    if store is not None:
        settings = _s3a(package, store)
    program = folder / "delta_spark_program.py"
    program.write_text(_PROGRAM)
    with (folder / "delta_spark.log").open("w") as log:
        process = subprocess.Popen(
            [PYTHON, str(program), json.dumps(settings)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield DeltaSpark(process.stdin, process.stdout, folder)
    finally:
        process.stdin.close()
        try:
            process.wait(_END_S)
        finally:
            process.kill()
            process.stdout.close()


def _s3a(package: str, store: Mapping[str, str]) -> dict[str, str]:
    options = {
        "endpoint": store["aws_endpoint_url"],
        "endpoint.region": store["aws_region"],
        "access.key": store["aws_access_key_id"],
        "secret.key": store["aws_secret_access_key"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        "spark.jars.packages": ",".join((package, *S3A_PACKAGES)),
        "spark.jars.excludes": _S3A_EXCLUDED,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()},
    }
