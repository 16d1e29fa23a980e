"""A user's program with a stream of a table, which prints what Spark shows of it.

``python -m tests.soak.watched_stream FOLDER PORT``, with the port of Spark's UI. Its input has the
source's options as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.request import urlopen

_PAGES = ("jobs/", "stages/", "SQL/", "environment/", "executors/")
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


def pages_of(port: int) -> str:
    """What Spark's UI shows of the application that runs, all its jobs and queries."""

    def read(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
            text: str = answer.read().decode()
            return text

    found = [read(page) for page in _PAGES]
    for one in json.loads(read("api/v1/applications")):
        of_one = f"api/v1/applications/{one['id']}"
        found += [read(f"{of_one}/{each}") for each in ("jobs", "stages", "environment")]
        queries = read(f"{of_one}/sql?details=true&planDescription=true&length=1000")
        found.append(queries)
        found += [read(f"SQL/execution/?id={each['id']}") for each in json.loads(queries)]
    return "\n".join(found)


def main(folder: Path, port: int, options: dict[str, str]) -> None:
    """Read all that is there; print plans, progress and the UI."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("a stream that is watched")
    events = folder / "events"
    events.mkdir()
    for name, value in {
        **_SETTINGS,
        "spark.eventLog.dir": str(events),
        "spark.ui.port": str(port),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.readStream.format("pgoutput").options(**options).load()
    rows.explain(True)
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "changes"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    with urlopen(f"http://127.0.0.1:{port}/StreamingQuery/") as answer:
        queries = answer.read().decode()
    count = spark.read.parquet(str(folder / "changes")).count()
    sys.stdout.write(f"{query.recentProgress}\n{queries}\n{pages_of(port)}\nrows: {count}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.load(sys.stdin))
