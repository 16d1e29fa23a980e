"""A Spark whose JVM is killed while it starts."""

from __future__ import annotations

from pathlib import Path

import pyspark

_SCRIPT = """#!/bin/bash
# The JVM keeps this process's id.
echo start >> "{starts}"
# What the JVM writes whenever it starts.
echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2
case $(wc -l < "{starts}") in
1)
    kill -KILL $$
    ;;
2)
    # When PySpark has read where to connect to.
    (
        exec 9<> <(:)  # never has a line: to wait for one starts no process, and the file is there
        pause() {{ read -rt 0.002 -u 9; }}  # for some milliseconds only
        until [ -e "$_PYSPARK_DRIVER_CONN_INFO_PATH" ]; do kill -0 $$ || exit; pause; done
        while [ -e "$_PYSPARK_DRIVER_CONN_INFO_PATH" ]; do pause; done
        kill -KILL $$
    ) &
    ;;
esac
export SPARK_HOME="{home}"
exec "$SPARK_HOME/bin/spark-submit" "$@"
"""


def failing_spark(folder: Path) -> Path:
    """A SPARK_HOME whose JVM is killed twice: as it begins, and while PySpark connects to it."""
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    program.write_text(_SCRIPT.format(starts=folder / "starts", home=home))
    program.chmod(0o755)
    return folder
