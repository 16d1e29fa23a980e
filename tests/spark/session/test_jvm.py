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
from pgsluice.spark.session.starting_context import is_refusal


@pytest.fixture
def spark_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Spark that the user has chosen; its script is a test's."""
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return tmp_path / "spark"


def test_what_the_jvm_says_is_read() -> None:
    said = b"\0\0\x9c\x40" + b"\0\0\0\x06" + b"secret"
    assert jvm.port_and_secret(said) == (40000, "secret")


SCRIPT = """#!/bin/sh
(while :; do echo here; sleep 0.05; done) >> {said} &
echo $! > {child}
echo 'Error: Could not find or load main class org.apache.spark.launcher.Main' >&2
kill -KILL $$
"""


def test_a_script_that_is_killed_is_no_refusal_and_leaves_nothing(
    spark_folder: Path, tmp_path: Path
) -> None:
    """A run that was killed while its JVM started has left a folder."""
    log, child, said = (tmp_path / name for name in ("spark.log", "child", "said"))
    script = spark_folder / "bin" / "spark-submit"
    script.write_text(SCRIPT.format(said=said, child=child))
    script.chmod(0o755)
    (tmp_path / "spark.log.999999999").mkdir()
    with pytest.raises(jvm.LaunchEndedError) as caught:
        jvm.Launch({}, log).context()
    assert caught.value.exit_code == -signal.SIGKILL
    assert not is_refusal(caught.value, log.read_text().splitlines())
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


def test_a_jvm_whose_folder_is_deleted_is_ended(spark_folder: Path, tmp_path: Path) -> None:
    """A state folder may be lost at any time, and the JVM writes its port only once."""
    log, child = tmp_path / "state" / "spark.log", tmp_path / "child"
    script = spark_folder / "bin" / "spark-submit"
    script.write_text(SLOW_SCRIPT.format(child=child))
    script.chmod(0o755)
    launch = jvm.Launch({}, log)
    await_that(lambda: child.exists() and len(child.read_text().split()) == 2)
    shutil.rmtree(log.parent)
    with pytest.raises(jvm.LaunchEndedError) as caught:
        launch.context()
    assert caught.value.is_kill
    await_that(lambda: has_ended(child))


LAUNCHING = """
import sys
from pathlib import Path
from pgsluice.spark.session import jvm

launch = jvm.Launch({}, Path(sys.argv[1]))
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
    with subprocess.Popen([sys.executable, "-c", LAUNCHING, log], stdout=subprocess.PIPE) as driver:
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
from pgsluice.spark.session.starting_context import StartingContext

for long in ("", "x" * 200_000):  # Linux lets no variable be so long
    os.environ["LONG"] = long
    settings = {"spark.master": "local"}
    session = StartingContext(settings, "t", Path(sys.argv[1]), owns_process=True)
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
    command = [sys.executable, "-c", STARTING, tmp_path / "spark.log"]
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
    command = [sys.executable, "-c", STARTING, tmp_path / "spark.log"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert said.startswith("Spark's JVM ended while it started\n")
