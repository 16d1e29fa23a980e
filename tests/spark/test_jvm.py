"""How the JVM of `pgsluice run` is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgsluice.spark import jvm


@pytest.fixture
def spark_folder(tmp_path: Path) -> Path:
    """A Spark as PySpark installs it, with empty files."""
    for name in (
        "bin/spark-submit",
        "jars/aircompressor-2.jar",
        "jars/spark-catalyst_2.13-4.2.1.jar",
        "jars/spark-launcher_2.13-4.2.1.jar",
        "python/lib/pyspark.zip",
    ):
        path = tmp_path / "pyspark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "pyspark"


def test_the_jars_with_most_classes_come_after_the_users_and_before_the_others(
    spark_folder: Path,
) -> None:
    jars = spark_folder / "jars"
    ours = [f"{jars}/spark-catalyst_2.13-4.2.1.jar", f"{jars}/spark-launcher_2.13-4.2.1.jar"]
    assert jvm._class_path(spark_folder, None).split(":") == [*ours, f"{jars}/*"]
    assert jvm._class_path(spark_folder, "a.jar:b.jar").split(":")[:3] == [
        "a.jar",
        "b.jar",
        ours[0],
    ]


def test_the_scripts_find_spark_without_its_archive_of_pyspark(
    spark_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Xmx64m")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python3")
    with jvm._quick_scripts(spark_folder):
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "bin" / "spark-submit").is_file()
        assert [path.name for path in (home / "jars").iterdir()] == [
            "spark-launcher_2.13-4.2.1.jar"
        ]
        assert not (home / "python").exists()
        assert os.environ["SPARK_LAUNCHER_OPTS"] == "-Xmx64m", "the user's own"
        # Else the JVM starts processes that look for the data sources of all packages.
        assert not Path(os.environ["PYSPARK_DRIVER_PYTHON"]).exists()
    assert not home.exists()
    assert "SPARK_HOME" not in os.environ
    assert os.environ["SPARK_LAUNCHER_OPTS"] == "-Xmx64m"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "python3"


def test_a_spark_that_the_user_chose_is_started_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert jvm._spark_of_pyspark() is not None
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert jvm._spark_of_pyspark() is None
    with jvm._quick_scripts(None):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
