"""Capture as a child process: how it ends, and what its parent makes of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.capturing import configure, insert, inserted, numbers, phase
from tests.support.databases import MakeDatabase
from tests.support.waiting import await_that

from pgsluice.capture import CaptureProcess, read_health
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.errors import PgsluiceError, SourceUnreachable


def nowhere(tmp_path: Path) -> Config:
    source = SourceConfig(dsn="host=127.0.0.1 port=1", slot="s", connect_timeout_s=0)
    return Config(source=source, spool=SpoolConfig(path=tmp_path / "spool"))


@pytest.mark.parametrize(
    "said", ["something else", "42", "x" * 1_000_000], ids=["text", "a number", "a lot of text"]
)
def test_other_text_on_its_standard_output_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A library may print when it is imported, or when the process ends."""
    code = f"import atexit\nprint({said!r}[:60000])\natexit.register(print, {said!r})\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with CaptureProcess(nowhere(tmp_path)) as capture, pytest.raises(SourceUnreachable):
        await_that(lambda: not capture.check())


def test_an_end_without_a_word_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(7)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with (
        CaptureProcess(nowhere(tmp_path)) as capture,
        pytest.raises(PgsluiceError, match="exit code 7"),
    ):
        await_that(lambda: not capture.check())


def test_it_is_started_again_when_another_ends_it(database: MakeDatabase, tmp_path: Path) -> None:
    """It does not wait for a lock that a migration has on a table."""
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE locked (id int)")
    config = configure(db, tmp_path / "spool")
    with CaptureProcess(config) as capture, db.connect() as migration:
        await_that(lambda: capture.check() and phase(config) == "streaming")
        migration.execute("BEGIN; LOCK TABLE locked")
        assert capture.pid is not None
        os.kill(capture.pid, signal.SIGTERM)
        first = capture.pid
        await_that(lambda: capture.check() and capture.pid not in (None, first))
        db.execute(insert(1, 3))
        await_that(lambda: capture.check() and inserted(config) == numbers(1, 3))
    health = read_health(config.spool.path)
    assert health is not None
    assert health.phase == "stopped"


def test_a_child_that_cannot_be_started_is_an_error_and_later_is_tried_again(
    database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def remove_python() -> None:
        monkeypatch.setattr("sys.executable", python)

    db, python = database(), str(tmp_path / "python")
    config = configure(db, tmp_path / "spool")
    said = f"capture could not be started: No such file or directory: {python}"
    remove_python()
    with pytest.raises(PgsluiceError, match=f"{said}\n  → was this"), CaptureProcess(config):
        pytest.fail("it has started")
    monkeypatch.undo()
    with CaptureProcess(config) as capture:
        await_that(lambda: capture.check() and phase(config) == "streaming")
        remove_python()
        assert capture.pid is not None
        os.kill(capture.pid, signal.SIGKILL)
        await_that(lambda: capture.check() and said in caplog.text)
        assert capture.pid is None
        monkeypatch.undo()
        await_that(lambda: capture.check() and capture.pid is not None)


def test_a_capture_that_was_closed_is_not_started_again(tmp_path: Path) -> None:
    """A thread may look after it a moment after its run has ended it: nobody would end the next."""
    with CaptureProcess(nowhere(tmp_path)) as capture:
        pass
    assert not capture.check()
    assert capture.pid is None
