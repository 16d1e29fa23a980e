"""pgbench's TPC-B on a pipeline's source, and SIGKILL to the pipeline's processes meanwhile."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress

import psutil
from tests.support.databases import Database
from tests.support.pipeline import Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.embedded.account import Account
from pgsluice.embedded.programs import find_programs

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
SCALE = 5
CLIENTS = 4
VICTIMS = ("capture", "driver", "worker")


def pgbench() -> str:
    """The program of 18, which knows servers of every version; old ones here come without."""
    return str(find_programs(18, Account.choose()).path("pgbench"))


def initialise(database: Database, scale: int = SCALE) -> None:
    """pgbench's four tables, 100,000 accounts for each step of the scale.

    pgbench_history has no key and only takes inserts.
    """
    command = [pgbench(), "-i", "-q", "-s", str(scale)]
    subprocess.run([*command, database.dsn], check=True, capture_output=True, timeout=HANGS_S)


def bench(database: Database, seconds: int) -> subprocess.Popen[str]:
    """TPC-B for some seconds, without its VACUUM."""
    return subprocess.Popen(
        [pgbench(), "-n", "-c", str(CLIENTS), "-j", "2", "-T", str(seconds), database.dsn],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fire(one: Pipeline, *, seconds: int, kills: int, seed: int, restart: bool = False) -> list[str]:
    """Kill capture, the driver and Python workers at random moments while pgbench writes.

    Args:
        seconds: how long pgbench writes; as long again after a restart of the server.
        kills: how many processes are killed.
        seed: of the moments and of who is next.
        restart: after half of the kills, crash the server and start it again.

    Returns:
        who was killed.
    """
    with (one.folder / "run.log").open("a") as log:  # what a failure shows
        log.write(f"seed {seed}\n")
    dice = random.Random(seed)
    victims = [VICTIMS[(seed + number) % 3] for number in range(kills)]
    dice.shuffle(victims)
    one.start()
    running = bench(one.database, seconds)
    for number, victim in enumerate(victims):
        if restart and number == kills // 2:
            one.database.server.restart("immediate")
            running.communicate(timeout=HANGS_S)  # its clients were thrown out
            running = bench(one.database, seconds)
        # The first ones may hit the copy, the last ones the time after pgbench's end.
        await_until(time.monotonic() + dice.uniform(0.5, 2 * seconds * (1 + restart) / kills))
        # Until there is one of that kind: without changes, there may be no worker.
        while not kill(one, victim, dice) and running.poll() is None:
            await_until(time.monotonic() + 0.1)
            start_again(one)
        start_again(one)
    output, _ = running.communicate(timeout=HANGS_S)
    assert running.returncode == 0, output
    one.wait_applied(meanwhile=lambda: start_again(one))
    one.assert_equal(*TABLES)
    last = one.processes[-1]
    one.stop()
    assert last.returncode == 143
    return victims


def start_again(one: Pipeline) -> None:
    """A driver that was killed, or found its predecessor's capture still ending."""
    if all(process.poll() is not None for process in one.processes):
        one.start()


def await_until(moment: float) -> None:
    """The moments of the kills are what the test is about: they are drawn, not awaited."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def kill(one: Pipeline, what: str, dice: random.Random) -> bool:
    """SIGKILL to one process of the run; False when none of that kind is there now."""
    processes = processes_of(one, what)
    if not processes:
        return False
    victim = dice.choice(processes)
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    for process in one.processes:
        if process.pid == victim.pid:
            process.wait()
    return True


def processes_of(one: Pipeline, what: str) -> list[psutil.Process]:
    """The processes of a kind that a run has now: driver, capture, worker (with Spark's daemons of
    workers) or jvm; or what :attr:`Pipeline.elsewhere` finds."""
    if what in one.elsewhere:
        return one.elsewhere[what]()
    driver = next((p for p in one.processes if p.poll() is None), None)
    if driver is None:
        return []
    try:
        root = psutil.Process(driver.pid)
        children = root.children(recursive=True)
    except psutil.NoSuchProcess:  # it has just ended
        return []
    if what == "driver":
        return [root]
    found = []
    for child in children:
        with suppress(psutil.Error):
            program, *arguments = child.cmdline() or [""]  # empty: it has just ended
            if "java" in program:
                kind = "" if "-version" in arguments else "jvm"
            elif any("pgsluice.capture" in each for each in arguments):
                kind = "capture"
            else:
                kind = "worker" if any("pyspark" in each for each in arguments) else ""
            if kind == what:
                found.append(child)
    return found
