"""Recognises Spark's errors, and summarizes them in one line."""

from __future__ import annotations

import re


def spark_errors() -> tuple[type[Exception], ...]:
    """The exception classes of failed calls of Spark.

    If the JVM is gone, a new thread cannot connect, and py4j does not wrap that error.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError


def summarize_error(error: BaseException) -> str:
    """The message of a Spark error, without the query plans and stack traces that follow it."""
    text = str(error).strip().partition("\n=== Streaming Query")[0]
    line = text.partition("\n")[0]
    if line.endswith("Traceback (most recent call last):"):
        # A Python error: its message is the last line that starts with an exception's name.
        messages = [line for line in text.splitlines() if re.match(r"[\w.]+: ", line)]
        line = messages[-1] if messages else line
    elif line.startswith("An error occurred while calling "):
        # py4j's own line; Java's message is on the next one.
        line = str(error).strip().partition("\n")[2].partition("\n")[0].removeprefix(": ")
    _, _, cause = line.rpartition("terminated with exception: ")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", cause).strip() or type(error).__name__


def is_without_jvm(error: BaseException) -> bool:
    """Whether a call of Spark failed because its JVM is gone, so that all later calls will fail."""
    from py4j.protocol import Py4JNetworkError

    return isinstance(error, Py4JNetworkError | ConnectionError)
