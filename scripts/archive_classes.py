"""Write an archive of the classes that Spark's JVM loads. With it, a JVM starts in half the CPU.

``make test`` writes it once for an environment, and ``tests/conftest.py`` uses it: the tests start
about thirty JVMs. A JVM ignores an archive of another version or another class path::

    python scripts/archive_classes.py .venv/spark.jsa
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOG = "-Xlog:disable"  # the JVM warns of each class that it cannot archive


def main(path: Path) -> None:
    """Run a job and a query in a JVM that writes the classes it has loaded when it ends."""
    fresh = path.with_suffix(".fresh")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={fresh} {LOG}"
    from pyspark import SparkContext

    from pgsluice.spark.session.session import build_session

    spark = build_session({"spark.master": "local[2]", "spark.log.level": "OFF"}, "archive_classes")
    spark.sparkContext.parallelize(range(2), 2).map(str).collect()
    spark.range(2).selectExpr("sum(id)").collect()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    fresh.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
