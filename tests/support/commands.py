"""The command line in this process, and configurations to call it with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgsluice.cli.app import run_command


@dataclass(frozen=True)
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]
WriteConfig = Callable[..., Path]


@pytest.fixture
def pgsluice(capsys: pytest.CaptureFixture[str]) -> Command:
    """``pgsluice("check", path)``: runs a command line in this process."""

    def call(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        code = run_command([str(one) for one in arguments])
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return call


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    """``write_config(dsn, slot="s")``: a configuration in a folder of the test's own."""

    def write(dsn: str, slot: str = "pgsluice", extra: str = "") -> Path:
        path = tmp_path / "shop.toml"
        path.write_text(
            f"[source]\ndsn = {json.dumps(dsn)}\nslot = {json.dumps(slot)}\n"
            f"connect_timeout_s = 5\n{extra}\n"
            '[spool]\npath = "spool"\n'
            '[[subscription]]\nname = "lake"\n'
            'sink = { type = "delta", path = "lake/{schema}/{table}" }\n'
        )
        return path

    return write
