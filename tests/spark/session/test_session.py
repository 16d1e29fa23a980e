"""Settings of the sessions that pgsluice starts: defaults, overridden by the user's settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from tests.support.query_settings import SETTINGS_FOR_QUERIES
from tests.support.spools import SpoolMaker, orders

import pgsluice
from pgsluice.errors import ConfigError, SparkFailed
from pgsluice.spark.installed import require_data_sources, require_spark
from pgsluice.spark.session.java import Java, find_java, require_java
from pgsluice.spark.session.session import merged_settings, refuse_spark_errors


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ({}, "local[*,3]"),
        ({"spark.master": "local"}, "local[1,3]"),
        ({"spark.master": "local[2]"}, "local[2,3]"),
        ({"spark.master": "local[2,5]"}, "local[2,5]"),
        ({"spark.master": "spark://host:7077"}, "spark://host:7077"),
    ],
)
def test_a_local_master_retries_tasks(given: dict[str, str], master: str) -> None:
    assert merged_settings(given)["spark.master"] == master


def test_the_users_settings_override_the_defaults() -> None:
    given = {"spark.ui.enabled": "true", "spark.driver.host": "10.0.0.1"}
    merged = merged_settings(given)
    assert given.items() <= merged.items()
    assert merged["spark.driver.bindAddress"] == "127.0.0.1"


def test_the_settings_for_queries_of_users_are_those_of_the_tests() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark-source.md").read_text()
    documented = dict(re.findall(r"^\| `(spark\.[\w.]+) = (\S+)` \|", page, re.MULTILINE))
    waits = {name: value for name, value in merged_settings({}).items() if "Timeout" in name}
    assert documented == {**SETTINGS_FOR_QUERIES, **waits}


def test_a_run_has_no_settings_of_streaming_queries() -> None:
    assert not [name for name in merged_settings({}) if "streaming" in name]


def test_a_cluster_does_not_get_the_local_defaults() -> None:
    merged = merged_settings({"spark.master": "k8s://https://api"})
    assert "spark.driver.host" not in merged


def test_missing_java_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="found no Java") as caught:
        require_java()
    assert caught.value.exit_code == 2


def test_a_java_that_is_killed_while_it_says_its_version_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\n"
        f"if [ ! -e {tmp_path}/killed ]; then : > {tmp_path}/killed; kill -KILL $$; fi\n"
        "echo 'openjdk version \"21.0.1\"' >&2\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java() == Java(java, 21)
    assert (tmp_path / "killed").exists()


class SlowlyEnding:
    """A JVM's process that was killed, and takes five seconds to end."""

    pid = 12

    def wait(self, timeout: float) -> int:
        if timeout < 5:
            raise subprocess.TimeoutExpired("java", timeout)
        return -signal.SIGKILL


@pytest.mark.parametrize(
    "error",
    [Py4JError("An error occurred while calling o1.f"), ConnectionResetError(), BrokenPipeError()],
)
def test_a_jvm_that_gave_no_answer_has_ended_also_if_its_end_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=SlowlyEnding()))
    with pytest.raises(SparkFailed, match=r"Spark's JVM \(process 12\) has ended by SIGKILL"):
        refuse_spark_errors(error)


def test_an_older_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setattr("pyspark.__version__", "3.4.4")
    with pytest.raises(ConfigError, match=r"pyspark 3\.4 is too old"):
        require_spark()


def test_a_spark_without_data_sources_is_told_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.8")
    require_spark()
    with pytest.raises(ConfigError, match=r"needs Spark 4\.0 or newer, but this is Spark 3\.5"):
        require_data_sources()


def test_the_source_can_be_registered_explicitly(spark: Any, spool_maker: SpoolMaker) -> None:
    pgsluice.register(spark)
    spool_maker.segment(orders(1))
    options = {"spool": str(spool_maker.path), "table": "public.orders"}
    frame = spark.read.format("pgoutput").options(**options).load()
    assert [(row.id, row.note) for row in frame.collect()] == [(1, "note 1")]
