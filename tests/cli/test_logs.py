"""``--log-format json``: whatever a command prints is one object a line, to its end by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.monitor.test_http_server import ask, free_port
from tests.support.commands import Command, WriteConfig
from tests.support.databases import MakeDatabase
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import read_health
from pgsluice.log_lines import VARIABLE


def test_a_command_that_fails_says_so_as_json(
    pgsluice: Command, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "text")  # and what the command sets is gone after the test
    path = write_config("host=127.0.0.1 port=1 dbname=shop", extra="connect_timeout_s = 0")
    path.write_text(path.read_text().replace("connect_timeout_s = 5\n", ""))
    outcome = pgsluice("capture", path, "--log-format", "json")
    assert outcome.code == 1
    said = json.loads(outcome.err)
    assert (said["level"], said["event"], said["exit_code"]) == ("error", "failed", 1)
    assert said["message"].startswith("pgsluice cannot reach the server")


def test_an_unknown_format_is_refused(pgsluice: Command, write_config: WriteConfig) -> None:
    outcome = pgsluice("capture", write_config("dbname=shop"), "--log-format", "xml")
    assert outcome.code == 2
    assert "'xml'" in outcome.err


def test_a_capture_that_serves_ends_by_sigterm(
    write_config: WriteConfig, database: MakeDatabase
) -> None:
    shop, port = database(), free_port()
    path = write_config(shop.dsn, shop.name, f'publications = ["{shop.name}"]')
    with path.open("a") as file:
        file.write(f'[monitor]\nlisten = "127.0.0.1:{port}"\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "pgsluice", "capture", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, VARIABLE: "json"},
        text=True,
    )
    spool = path.parent / "spool"

    def is_streaming() -> bool:
        health = read_health(spool)
        return process.poll() is not None or (health is not None and health.phase == "streaming")

    try:
        await_that(is_streaming, "capture streams")
        assert ask(port, "/healthz") == (200, b"ok\n")
        code, page = ask(port, "/metrics")
        assert (code, b'process="capture"' in page, b'process="run"' in page) == (200, True, False)
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143, out
    lines = [json.loads(line) for line in out.splitlines()]
    assert "streaming" in [line["event"] for line in lines]
    assert any("failover slot" in line["message"] for line in lines), "not set in silence"
    assert {line["room"] for line in lines} == {"capture"}
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/healthz")
