"""``pgsluice demo``: its output, its end, and that no process outlives it."""

from __future__ import annotations

import io
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.commands import Command
from tests.support.waiting import await_that

from pgsluice.demo.shop import TABLES
from pgsluice.demo.show import show_proof
from pgsluice.demo.stage import Stage
from pgsluice.lsn import Lsn
from pgsluice.verification import Comparison
from pgsluice.verification.digest import Digest

DEMO = [sys.executable, "-m", "pgsluice", "demo"]


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name the folder, or whose working directory is in it."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            works_in = (process / "cwd").readlink()
        except OSError:
            continue
        if str(folder) in command or works_in.is_relative_to(folder):
            commands.append(command)
    return commands


def read_terminal(master: int) -> str:
    """Everything that a process prints on its terminal until it ends."""
    output = b""
    while True:
        try:
            part = os.read(master, 65_536)
        except OSError:  # EIO: nobody has the terminal open any more
            return output.decode(errors="replace")
        if not part:
            return output.decode(errors="replace")
        output += part


@pytest.mark.xdist_group("processes")
def test_every_table_is_equal_and_the_next_commands_work(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    master, slave = pty.openpty()
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "2", "--dir", str(folder)],
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"},
    )
    os.close(slave)
    output = read_terminal(master)
    os.close(master)
    assert demo.wait() == 0, output
    assert f"All {len(TABLES)} tables are equal." in output
    assert "DIFFERS" not in output
    assert "the shop is busy" in output  # the live display
    assert "exit code 143" in output
    # Spark's Python processes end when they see that their JVM has.
    await_that(lambda: not processes_of(folder), "all processes have ended")
    commands = [line.strip() for line in output.splitlines() if line.startswith("  /")]
    assert len(commands) == 3
    answers = [
        subprocess.run(shlex.split(line), capture_output=True, text=True) for line in commands
    ]
    assert [answer.returncode for answer in answers] == [0, 0, 0], answers
    assert "'status': 'done'" in answers[0].stdout
    assert "WRITE" in answers[1].stdout
    assert "public.orders" in answers[2].stdout


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.xdist_group("processes")
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    demo = subprocess.Popen(
        [*DEMO, "--dir", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (folder / "spool").exists():  # pgsluice run is at work
        assert demo.poll() is None
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate()
    assert demo.returncode == 130, out + err
    assert "Traceback" not in err
    assert "pgsluice run starts" in out
    # A JVM that was just coming up finds its parent gone when it is up, and ends.
    await_that(lambda: not processes_of(folder), "all processes have ended")


def test_without_java_the_error_is_one_sentence(
    pgsluice: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    outcome = pgsluice("demo", "--dir", tmp_path / "shop")
    assert outcome.code == 2
    assert "Spark needs Java 17 or newer, but pgsluice found no Java" in outcome.err
    assert not (tmp_path / "shop").exists()


def test_a_folder_in_use_is_refused(pgsluice: Command, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    outcome = pgsluice("demo", "--dir", tmp_path)
    assert outcome.code == 2
    assert f"{tmp_path} is not empty" in outcome.err


def test_differing_keys_are_shown() -> None:
    file = io.StringIO()
    differing = Comparison(
        max(TABLES, key=len),
        Digest(1_234_567, 1 << 63, 2),
        Digest(1_234_567, 1 << 63, 3),
        missing_keys=(("7", "paid"),),
        differing_keys=(("8", "new"),),
    )
    same = Comparison("public.carts", Digest(1, 5, 5), Digest(1, 5, 5))

    show_proof([differing, same], Lsn(16), "18.4", Console(file=file, width=80))
    text = file.getvalue()
    assert "DIFFERS" in text
    assert "missing: (7, paid); differing: (8, new)" in text
    assert "1 of 2 tables are equal." in text
    assert "…" not in text


def test_a_temporary_folder_goes_with_its_stage() -> None:
    with Stage(None, keep=False) as stage:
        assert stage.folder.exists()
    assert not stage.folder.exists()
