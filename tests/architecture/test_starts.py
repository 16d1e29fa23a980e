"""Every process of a run is started in one place, which tries again what passes by itself."""

from __future__ import annotations

import ast
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

import pgsluice
from pgsluice.system.processes import Part, start

ROOT = Path(pgsluice.__file__).parent
_OF_DEMO = ("demo/", "embedded/")


class _CloseAtFirstLine(logging.Handler):
    """Ends the passing reason when the log says that the start is tried again."""

    def __init__(self, writer: object) -> None:
        super().__init__()
        self._writer = writer
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._writer.close()  # type: ignore[attr-defined]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    shutil.copy("/bin/true", path)
    return path


def test_a_program_that_is_just_written_is_started_when_it_is_there(program: Path) -> None:
    with program.open("ab") as writer:  # the kernel refuses to start it now: ETXTBSY
        handler = _CloseAtFirstLine(writer)
        logging.getLogger("pgsluice.system.processes").addHandler(handler)
        try:
            process = start(Part.CAPTURE, lambda: subprocess.Popen([program]), [0.0, 0.0])
        finally:
            logging.getLogger("pgsluice.system.processes").removeHandler(handler)
    assert process.wait() == 0
    assert handler.lines == ["capture could not be started: Text file busy: pgsluice tries again"]


def test_attempts_end_and_what_stays_is_not_tried_again(
    program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        program.open("ab"),
        pytest.raises(OSError, match="Text file busy"),
    ):
        start(Part.KEEPER, lambda: subprocess.Popen([program]), [0.0, 0.0])
    assert len(caplog.messages) == 2
    program.unlink()
    with pytest.raises(FileNotFoundError):
        start(Part.JVM, lambda: subprocess.Popen([program]))
    assert len(caplog.messages) == 2


def test_no_other_place_starts_processes() -> None:
    outside = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(_OF_DEMO):
            continue
        tree = ast.parse(path.read_text())
        inside = {
            id(node)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "start"
            for node in ast.walk(call)
        }
        outside += [
            f"{name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).startswith("subprocess.")
            and id(node) not in inside
        ]
    assert outside == []
