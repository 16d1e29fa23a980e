"""The program: its commands, its error messages and its exit codes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import Command, WriteConfig
from tests.support.databases import MakeDatabase
from tests.support.waiting import HANGS_S

from pgsluice import __version__
from pgsluice.cli.app import app
from pgsluice.config import load_config

COMMANDS = {command.callback.__name__ for command in app.registered_commands if command.callback}


def test_the_version(pgsluice: Command) -> None:
    outcome = pgsluice("--version")
    assert (outcome.code, outcome.out) == (0, f"pgsluice {__version__}\n")


def test_without_a_command_it_lists_all_commands(pgsluice: Command) -> None:
    outcome = pgsluice()
    assert outcome.code == 0
    for command in ("init", "check", "run", "capture", "status", "copy", "drop"):
        assert f"\n  {command} " in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no such command 'nope'"),
        (["check"], "missing argument 'CONFIG'"),
        (["status", "c.toml", "--jso"], "no such option: --jso"),
        (["run", "/not/there.toml"], "the configuration /not/there.toml does not exist"),
    ],
)
def test_usage_is_exit_code_2(pgsluice: Command, arguments: list[str], message: str) -> None:
    outcome = pgsluice(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"pgsluice: {message}")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(pgsluice: Command, place: str) -> None:
    arguments = ["status", "/not/there.toml"]
    arguments.insert(0 if place == "before" else 2, "--debug")
    outcome = pgsluice(*arguments)
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "pgsluice: the configuration /not/there.toml does not exist" in outcome.err


def test_an_unreachable_host_is_exit_code_1(pgsluice: Command, write_config: WriteConfig) -> None:
    path = write_config("host=127.0.0.1 port=1 user=x", extra="")
    path.write_text(path.read_text().replace("connect_timeout_s = 5", "connect_timeout_s = 0.1"))
    outcome = pgsluice("capture", path)
    assert outcome.code == 1
    assert outcome.err.startswith("pgsluice: pgsluice cannot reach the server")


def test_a_wrong_password_is_exit_code_3_and_not_shown(
    database: MakeDatabase, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop = database()
    name = f"{shop.name}_app"
    shop.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'right'")
    hba = shop.server.data_dir / "pg_hba.conf"
    before = hba.read_text()
    try:
        rules = f"host all {name} all scram-sha-256\nhost replication {name} all scram-sha-256\n"
        hba.write_text(rules + before)
        shop.execute("SELECT pg_reload_conf()")
        dsn = f"{shop.dsn.replace('user=postgres', '')} user={name} password=wr0ng"
        outcome = pgsluice("capture", write_config(dsn))
    finally:
        hba.write_text(before)
        shop.execute("SELECT pg_reload_conf()", f"DROP ROLE {name}")
    assert outcome.code == 3
    assert "password authentication failed" in outcome.err
    assert "wr0ng" not in outcome.out + outcome.err


def test_without_java_nothing_is_started(
    pgsluice: Command, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = write_config("host=127.0.0.1 port=1")
    outcome = pgsluice("run", path)
    assert outcome.code == 2
    assert outcome.err.startswith(
        "pgsluice: Spark needs Java 17 or newer, but pgsluice found no Java"
    )
    assert not (tmp_path / "spool").exists()


def test_a_java_that_is_too_old(
    pgsluice: Command, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    outcome = pgsluice("run", write_config("host=127.0.0.1 port=1"))
    assert outcome.code == 2
    assert f"{program} is Java 8" in outcome.err


@pytest.mark.parametrize("command", ["", *sorted(COMMANDS)])
def test_help_is_whole_on_a_narrow_terminal(
    pgsluice: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = pgsluice(*command.split(), "-h")
    assert short.code == 0
    assert short.out == pgsluice(*command.split(), "--help").out
    assert not [line for line in short.out.splitlines() if re.search(r"[^\]]\.\.\.$", line)]


def test_usage_lines_have_the_usual_form(pgsluice: Command) -> None:
    """A required argument by its name, others in brackets."""
    usages = [pgsluice(command, "-h").out.partition("\n")[0] for command in sorted(COMMANDS)]
    assert usages == [
        "Usage: pgsluice at [OPTIONS] CONFIG [LSN|TIME]",
        "Usage: pgsluice capture [OPTIONS] CONFIG",
        "Usage: pgsluice check [OPTIONS] CONFIG",
        "Usage: pgsluice copy [OPTIONS] CONFIG TABLE",
        "Usage: pgsluice decode [OPTIONS] FILE",
        "Usage: pgsluice demo [OPTIONS]",
        "Usage: pgsluice describe [OPTIONS] CONFIG [PUB]",
        "Usage: pgsluice drop [OPTIONS] [CONFIG]",
        "Usage: pgsluice explain [OPTIONS] CONFIG TABLE",
        "Usage: pgsluice init [OPTIONS] [CONFIG]",
        "Usage: pgsluice page [OPTIONS] CONFIG",
        "Usage: pgsluice rejects [OPTIONS] CONFIG [TABLE]...",
        "Usage: pgsluice run [OPTIONS] CONFIG",
        "Usage: pgsluice status [OPTIONS] CONFIG",
        "Usage: pgsluice verify [OPTIONS] CONFIG [TABLE]...",
    ]


def test_the_module_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgsluice", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"pgsluice {__version__}\n"


def test_of_an_object_store_only_the_error_is_printed(write_config: WriteConfig) -> None:
    """Its library would print each attempt to find credentials, in lines of a thousand letters."""
    path = write_config("host=127.0.0.1 port=1")
    path.write_text(path.read_text().replace('path = "lake/', 'path = "s3://lake/'))
    nowhere = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1", "AWS_REGION": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "pgsluice", "check", path],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "s3://lake/" in done.stdout
    assert done.stderr == ""


class TestInit:
    def test_writes_a_valid_configuration(self, pgsluice: Command, tmp_path: Path) -> None:
        path = tmp_path / "new" / "shop.toml"
        outcome = pgsluice(
            "init", path, "--dsn", 'host=db application_name=\'a "b" \\\\ c\'', "--slot", "shop",
            "--spool", "/var/spool/pg", "--target", "/lake/{table}", "--name", "pond",
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        config = load_config(path)
        assert config.source.dsn == "host=db application_name='a \"b\" \\\\ c'"
        assert (config.source.slot, config.source.publications) == ("shop", ("shop",))
        assert config.spool.path == Path("/var/spool/pg")
        assert config.subscriptions[0].name == "pond"
        assert config.subscriptions[0].sink.target == "/lake/{table}"
        assert path.stat().st_mode & 0o777 == 0o600

    def test_its_comments_are_valid_settings(self, pgsluice: Command, tmp_path: Path) -> None:
        path = tmp_path / "c.toml"
        assert pgsluice("init", path, "--yes").code == 0
        text = re.sub(r"^# (\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)
        config = load_config(path)
        assert config.spool.max_bytes == 20 * 2**30
        assert config.subscriptions[0].key == {"public.t": ("a", "b")}

    def test_overwrites_only_with_force(self, pgsluice: Command, tmp_path: Path) -> None:
        path = tmp_path / "c.toml"
        path.write_text("mine")
        outcome = pgsluice("init", path, "--yes")
        assert (outcome.code, path.read_text()) == (2, "mine")
        assert "--force" in outcome.err
        assert pgsluice("init", path, "--yes", "--force").code == 0
        assert "mine" not in path.read_text()

    def test_writes_nothing_that_run_refuses(self, pgsluice: Command, tmp_path: Path) -> None:
        path = tmp_path / "c.toml"
        outcome = pgsluice("init", path, "--yes", "--slot", "My Slot")
        assert outcome.code == 2
        assert '"slot" has to be a slot\'s name' in outcome.err
        assert not path.exists()

    def test_warns_about_a_password_in_the_file(self, pgsluice: Command, tmp_path: Path) -> None:
        outcome = pgsluice("init", tmp_path / "c.toml", "--dsn", "postgresql://a:s3cret@db/x")
        assert outcome.code == 0
        assert "~/.pgpass" in outcome.out
        assert "s3cret" not in outcome.out

    def test_without_a_terminal_it_needs_options(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pgsluice", "init", str(tmp_path / "c.toml")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "--dsn" in done.stderr

    def test_asks_on_a_terminal(self, tmp_path: Path) -> None:
        path = tmp_path / "c.toml"
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "pgsluice", "init", str(path)],
                stdin=theirs, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            os.write(ours, b"service=shop\n\n/spool\n\n\n")
            out, _ = process.communicate(timeout=HANGS_S)
        finally:
            os.close(ours)
            os.close(theirs)
        assert process.returncode == 0
        assert "The source's connection string" in out
        config = load_config(path)
        assert (config.source.dsn, config.source.slot) == ("service=shop", "pgsluice")
        assert config.spool.path == Path("/spool")


class TestWithoutAConfiguration:
    @pytest.mark.parametrize("command", ["check", "run", "capture", "status", "drop"])
    def test_every_command_says_what_is_wrong_with_it(
        self, pgsluice: Command, tmp_path: Path, command: str
    ) -> None:
        path = tmp_path / "c.toml"
        path.write_text('[source]\ndsn = "service=x"\nslto = "y"\n[spool]\npath = "s"\n')
        outcome = pgsluice(command, path)
        assert outcome.code == 2
        assert outcome.err == (
            'pgsluice: c.toml: [source]: unknown key "slto"; did you mean "slot"?\n'
        )
