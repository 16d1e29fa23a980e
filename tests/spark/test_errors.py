"""One-line summaries of Spark's errors."""

from __future__ import annotations

import pytest

from pgsluice.spark.errors import summarize_error


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("it broke", "it broke"),
        ("", "RuntimeError"),
        (
            (
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: no room"
                " SQLSTATE: XXKST\n=== Streaming Query ===\nLogical Plan:\n..."
            ),
            "no room",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "
                " SQLSTATE: XXKST (no cause message)\n=== Streaming Query ==="
            ),
            "RuntimeError",
        ),
        (
            (
                "An error occurred while calling o42.collectToPython.\n"
                ": org.apache.spark.SparkException: Job 7 cancelled \n\tat org.apache.spark"
            ),
            "org.apache.spark.SparkException: Job 7 cancelled",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: [PYTHON]"
                " Failed: Traceback (most recent call last):\n  File 'a', line 1, in b\n    c()\n"
                "pgsluice.errors.SpoolHole: a hole\n  → restore it\n SQLSTATE: 38000\n"
                "=== Streaming Query ===\nIdentifier: x"
            ),
            "pgsluice.errors.SpoolHole: a hole",
        ),
    ],
)
def test_a_spark_error_becomes_one_line(message: str, line: str) -> None:
    assert summarize_error(RuntimeError(message)) == line
