"""A standalone cluster of Spark on this machine: a master, and workers that may see other files."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.waiting import await_that

_END_S = 30.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True, slots=True)
class Standalone:
    """A running cluster.

    Attributes:
        url: of the master, for ``spark.master``.
        workers: the processes of the workers.
    """

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]

    def processes(self) -> list[psutil.Process]:
        """The workers, their executors and these executors' processes of Python, while they run;
        without the shells that start killed workers again."""
        return [each for worker in self.workers for each in descendants(worker.pid)]


@contextmanager
def standalone(
    python: Path,
    folder: Path,
    *,
    workers: int = 1,
    hidden: Sequence[Path] = (),
    restarts: bool = False,
) -> Iterator[Standalone]:
    """Start a cluster; its workers have two cores together, at least one each.

    Args:
        python: of the environment whose Spark the cluster is.
        folder: for logs and the workers' files.
        hidden: folders in whose place each worker has an empty one in memory. That needs root.
        restarts: start a worker again when it ends, as a service manager does.
    """
    spark = _spark_home(python)
    with ExitStack() as stack:
        log = folder / "master.log"
        master = [*_class(spark, _MASTER), "--host", "127.0.0.1", "--port", "0"]
        stack.enter_context(program([*master, "--webui-port", "0"], log, folder))
        url = _await_line(log, r"Starting Spark master at (spark://\S+)")
        started = []
        for number in range(workers):
            log = folder / f"worker{number}.log"
            command = [
                *_class(spark, _WORKER),
                *("--host", "127.0.0.1", "--webui-port", "0"),
                *("--cores", str(max(1, 2 // workers)), "--memory", "2g"),
                *("--work-dir", str(folder / f"work{number}"), url),
            ]
            if restarts:
                command = restarted(command)
            if hidden:
                command = isolated(command, hidden)
            started.append(stack.enter_context(program(command, log, folder)))
            _await_line(log, r"(Successfully registered with master)")
        yield Standalone(url, tuple(started))


def _spark_home(python: Path) -> Path:
    code = "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def _class(spark: Path, name: str) -> list[str]:
    return [str(spark / "bin" / "spark-class"), name]


def restarted(command: Sequence[str]) -> list[str]:
    """The command, started again each time it ends."""
    return ["sh", "-c", 'while :; do "$@"; sleep 0.2; done', "sh", *command]


def isolated(command: Sequence[str], hidden: Sequence[Path]) -> list[str]:
    """The command in its own mount namespace, with an empty folder in memory in place of each."""
    mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(each))} && " for each in hidden)
    shell = ["sh", "-c", f'{mounts}exec "$@"', "sh"]
    return ["unshare", "--mount", "--propagation", "private", *shell, *command]


def descendants(pid: int) -> list[psutil.Process]:
    """The processes that a process has started, and those that they have; without shells."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    running = []
    for each in found:
        with suppress(psutil.NoSuchProcess):
            if each.name() not in ("sh", "bash", "sleep"):
                running.append(each)
    return running


@contextmanager
def program(command: Sequence[str], log: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of Spark for the block, in a process group of its own."""
    variables = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    # The archive of classes is of another command line, and of another version.
    variables.pop("SPARK_SUBMIT_OPTS", None)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=variables, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # a worker ends its executors
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        _kill_group(process)
        process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _await_line(log: Path, pattern: str) -> str:
    found: list[str] = []

    def has_it() -> bool:
        found[:] = re.findall(pattern, log.read_text(errors="replace"))
        return bool(found)

    await_that(has_it, f"{log.name} has {pattern}")
    return found[0]
