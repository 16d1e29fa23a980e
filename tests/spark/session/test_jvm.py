"""How the JVM of `pgsluice run` is started."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import await_that

from pgsluice.spark.session import jvm
from pgsluice.spark.session.starting_context import _is_refusal


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
    spark_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    home = jvm._home(folder, spark_folder)
    assert (home / "bin" / "spark-submit").is_file()
    assert [path.name for path in (home / "jars").iterdir()] == ["spark-launcher_2.13-4.2.1.jar"]
    assert not (home / "python").exists()
    # Else the JVM starts processes that look for the data sources of all packages.
    environment = jvm._environment(folder, spark_folder, folder / "c")
    assert not Path(environment["PYSPARK_DRIVER_PYTHON"]).exists()


def test_what_the_jvm_says_is_read() -> None:
    said = b"\0\0\x9c\x40" + b"\0\0\0\x06" + b"secret"
    assert jvm._port_and_secret(said) == (40000, "secret")


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_GATEWAY_PORT"])
def test_a_spark_that_the_user_chose_is_started_as_it_is(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert jvm._spark_of_pyspark() is not None
    monkeypatch.setenv(name, "/opt/spark")
    assert jvm._spark_of_pyspark() is None


SCRIPT = """#!/bin/sh
(while :; do echo here; sleep 0.05; done) >> {said} &
echo $! > {child}
echo 'Error: Could not find or load main class org.apache.spark.launcher.Main' >&2
kill -KILL $$
"""


def test_a_script_that_is_killed_is_no_refusal_and_leaves_nothing(
    spark_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed while its JVM started has left a folder."""
    log, child, said = (tmp_path / name for name in ("spark.log", "child", "said"))
    script = spark_folder / "bin" / "spark-submit"
    script.write_text(SCRIPT.format(said=said, child=child))
    script.chmod(0o755)
    (tmp_path / "spark.log.999999999").mkdir()
    monkeypatch.setattr(jvm, "_spark_of_pyspark", lambda: spark_folder)
    with pytest.raises(jvm.LaunchEndedError) as caught:
        jvm.Launch({}, log, is_quick=True).context()
    assert caught.value.exit_code == -signal.SIGKILL
    assert not _is_refusal(caught.value, log.read_text().splitlines())
    assert [path.name for path in tmp_path.glob("spark.log.*")] == []
    # What the script had started has ended, or is about to.
    await_that(lambda: has_ended(child))


def has_ended(child: Path) -> bool:
    """Whether the processes have ended; perhaps nobody has waited for them yet."""
    return all(is_gone(int(pid)) for pid in child.read_text().split())


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


SLOW_SCRIPT = """#!/bin/sh
echo $$ > {child}
(while :; do sleep 1; done) &
echo $! >> {child}
wait
"""
LAUNCHING = """
import sys
from pathlib import Path
from pgsluice.spark.session import jvm

jvm._spark_of_pyspark = lambda: Path(sys.argv[1])
launch = jvm.Launch({}, Path(sys.argv[2]), is_quick=True)
print(flush=True)
launch.context()
"""


def test_a_driver_that_is_killed_while_its_jvm_starts_leaves_no_process(
    spark_folder: Path, tmp_path: Path
) -> None:
    """Also when the folder of the launch is deleted at once, by the next start or by a drop."""
    log, child = tmp_path / "spark.log", tmp_path / "child"
    script = spark_folder / "bin" / "spark-submit"
    script.write_text(SLOW_SCRIPT.format(child=child))
    script.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHING, spark_folder, log], stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        await_that(lambda: child.exists() and len(child.read_text().split()) == 2)
        driver.kill()
        shutil.rmtree(tmp_path / f"spark.log.{driver.pid}")
    await_that(lambda: has_ended(child))


STARTING = """
import os
import sys
from pathlib import Path
from pgsluice.errors import SparkFailed
from pgsluice.spark.session import jvm
from pgsluice.spark.session.starting_context import StartingContext

jvm._spark_of_pyspark = lambda: Path(sys.argv[1])
for long in ("", "x" * 200_000):  # Linux lets no variable be so long
    os.environ["LONG"] = long
    settings = {"spark.master": "local"}
    session = StartingContext(settings, "t", Path(sys.argv[2]), owns_process=True)
    try:
        session.wait(lambda: None)
    except SparkFailed as error:
        print(error.what, error.hint.replace("\\n", " "), sep="\\n")
"""


def test_a_jvm_that_cannot_be_started_is_no_jvm_that_ended(
    spark_folder: Path, tmp_path: Path
) -> None:
    """In a process of its own: this one may have a JVM already."""

    script = spark_folder / "bin" / "spark-submit"
    script.write_text("#!/bin/no-such-shell\n")
    script.chmod(0o755)
    command = [sys.executable, "-c", STARTING, spark_folder, tmp_path / "spark.log"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    what, hint, of_long, _ = said.splitlines()
    assert what == "Spark's JVM could not be started"
    assert "bin/spark-submit: " in hint
    assert of_long == "Spark's JVM could not be started: Argument list too long"


def test_a_jvm_that_is_gone_when_pyspark_connects_has_ended(
    spark_folder: Path, tmp_path: Path
) -> None:
    """It says where it is reached, at a port where nobody listens any more."""
    script = spark_folder / "bin" / "spark-submit"
    place = b"\\0\\0\\0\\1" + b"\\0\\0\\0\\6" + b"secret"
    script.write_text(
        f"#!/bin/sh\nprintf '{place.decode()}' > file\n"
        'mv file "$_PYSPARK_DRIVER_CONN_INFO_PATH"\n'
    )
    script.chmod(0o755)
    command = [sys.executable, "-c", STARTING, spark_folder, tmp_path / "spark.log"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert said.startswith("Spark's JVM ended while it started\n")
