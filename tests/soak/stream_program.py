"""A user's program: a stream of a table that begins with its rows, each batch in a folder.

``python -m tests.soak.stream_program FOLDER OPTIONS``, with the source's options as JSON. A
batch that Spark repeats replaces its folder, ``FOLDER/batches/N``. It is whole when it has
``_SUCCESS``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_SETTINGS = {
    "spark.master": "local[2,3]",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "60s",
}


def main(folder: Path, options: dict[str, str]) -> None:
    """Run the query until the process is ended."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("a stream that begins with rows")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def keep(frame: Any, number: int) -> None:
        frame.write.mode("overwrite").parquet(str(folder / "batches" / str(number)))

    rows = spark.readStream.format("pgoutput").options(**options).load()
    query = (
        rows.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
