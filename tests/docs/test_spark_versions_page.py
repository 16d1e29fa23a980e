"""docs/spark-versions.md has what older versions of Spark lack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pgsluice.spark.versions import SparkVersion

PAGE = Path(__file__).parents[2] / "docs" / "spark-versions.md"


class Lack(NamedTuple):
    """A feature that older versions of Spark do not have.

    Attributes:
        what: the feature.
        since: the first version that has it.
        instead: what pgsluice does on older ones.
    """

    what: str
    since: SparkVersion
    instead: str


_SOURCE = 'format("pgoutput")'
LACKS = (
    Lack(
        f"`{_SOURCE}`",
        SparkVersion(4, 0),
        "`pgsluice.register` refuses, with a hint: use `pgsluice run`, and read its tables",
    ),
    Lack(
        'Spark with Delta\'s jar reads tables with VARIANT columns (`json = "variant"`)',
        SparkVersion(4, 0),
        "it refuses such a table; `pgsluice check` warns, and a run writes it all the same",
    ),
    Lack(
        f"filters of a query reach the server (`snapshot` of `{_SOURCE}`)",
        SparkVersion(4, 1),
        "the server sends all rows, and Spark filters them",
    ),
    Lack(
        "Spark says where a batch of a stream starts and which limit it has",
        SparkVersion(4, 2),
        "the subscription's record has the end of the last planned batch; the options "
        "`max_rows_per_batch` and `max_bytes_per_batch` limit a batch",
    ),
    Lack(
        "`trigger(availableNow=True)` reads everything in several batches",
        SparkVersion(4, 2),
        "a start reads one batch of what the server had at its start, within the limits; a log "
        "line says so",
    ),
    Lack(
        "a stream with `availableNow` that starts with the rows of its table has all of them after "
        "one start",
        SparkVersion(4, 2),
        "the first start writes the rows into the spool and delivers none; each following start "
        "delivers up to `max_rows_per_batch` of them; the changes come in a start after all rows",
    ),
    Lack(
        "progress of a stream has its lag (`reportLatestOffset`)",
        SparkVersion(4, 2),
        "`pgsluice status` has it",
    ),
    Lack(
        "a start of `pgsluice run` is made faster ([ADR 0036](adr/0036-what-a-start-waits-for.md))",
        SparkVersion(4, 2),
        "a start takes about two seconds longer",
    ),
)
"""The rows of docs/spark-versions.md."""


def test_the_table_is_that_of_the_code() -> None:
    lines = [f"| {each.what} | {each.since} | {each.instead} |" for each in LACKS]
    table = "\n".join(["| feature | since Spark | before it |", "|---|---|---|", *lines])
    found = re.search(
        r"LACKS in .*? -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    assert found[1].strip() == table
