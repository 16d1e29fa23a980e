"""Problems are sent to the webhook when they begin and when they end, whatever it answers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.test_problems import CONFIG, READY, WELL, with_capture, with_lake, with_table
from tests.support.capturing import configure, phase, running
from tests.support.databases import MakeDatabase
from tests.support.waiting import await_that

from pgsluice.config import Config, MonitorConfig, parse_config
from pgsluice.errors import ConfigError
from pgsluice.monitor.problems import find_problems
from pgsluice.monitor.status import Status
from pgsluice.monitor.webhook import Alerts, Webhook, webhook_url
from pgsluice.spool import TableState

_OFTEN_S = 0.01
_WITH_WEBHOOK = """
[source]
dsn = "dbname=shop"
[spool]
path = "spool"
[monitor]
webhook = "{}"
"""


class _Receiver(HTTPServer):
    """A webhook that answers with the next of its codes, and with 204 after the last."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes: list[int] = []
        self.accepted: list[dict[str, Any]] = []
        self.refused = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook?token=s3cret"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.codes.pop(0) if self.server.codes else 204
        if code < 300:
            self.server.accepted.append(json.loads(body))
        else:
            self.server.refused += 1
        self.send_response(code)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    with _Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _sent(alerts: Alerts, status: Status, now: float) -> list[tuple[str, str]]:
    messages = alerts.update(find_problems(status, CONFIG), now)
    return [(message["event"], message["what"]) for message in messages]


def test_a_problem_is_raised_once_it_has_lasted_and_resolved_when_it_is_gone() -> None:
    alerts = Alerts("shop", 60.0)
    behind = [with_lake(lag_s=seconds) for seconds in (301.0, 350.0, 400.0)]
    assert _sent(alerts, behind[0], 0.0) == []
    assert _sent(alerts, WELL, 30.0) == []
    assert _sent(alerts, behind[0], 40.0) == []
    assert _sent(alerts, behind[1], 99.0) == []
    raised = [("raised", "lake: 5 min 50 s behind, more than 5 min 0 s")]
    assert _sent(alerts, behind[1], 100.0) == raised
    assert _sent(alerts, behind[2], 105.0) == [], "only its figure changed"
    assert _sent(alerts, WELL, 110.0) == [("resolved", raised[0][1])]
    assert _sent(alerts, WELL, 115.0) == []


def test_another_parked_table_is_raised_again() -> None:
    alerts = Alerts("shop", 0.0)
    parked = replace(READY, state=TableState.PARKED, error="x")
    one = with_lake(tables=(parked,))
    two = with_lake(tables=(parked, replace(parked, name="b")))
    assert _sent(alerts, one, 0.0) == [("raised", "lake: 1 table parked (public.a)")]
    assert _sent(alerts, one, 1.0) == []
    assert _sent(alerts, two, 2.0) == [("raised", "lake: 2 tables parked (public.a, public.b)")]
    assert _sent(alerts, WELL, 3.0) == [("resolved", "lake: 2 tables parked (public.a, public.b)")]


def test_a_name_of_several_lines_is_raised_once_and_in_one_line() -> None:
    alerts = Alerts("shop", 0.0)
    parked = replace(READY, name="a\n\x1b[2J", state=TableState.PARKED, error="x")
    ((event, what),) = _sent(alerts, with_lake(tables=(parked,)), 0.0)
    assert event == "raised"
    assert what.isprintable()
    assert _sent(alerts, with_lake(tables=(parked,)), 1.0) == []


def _config(database: MakeDatabase, tmp_path: Path, url: str) -> Config:
    config = configure(database(), tmp_path / "spool")
    with running(config):
        await_that(lambda: phase(config) == "streaming", "there is a spool")
    monitor = MonitorConfig(webhook=url, webhook_after_s=0.0)
    return config.model_copy(update={"monitor": monitor, "subscriptions": CONFIG.subscriptions})


def test_messages_arrive_in_order_at_a_webhook_that_fails_first_and_after_a_restart(
    database: MakeDatabase, tmp_path: Path, receiver: _Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = _config(database, tmp_path, receiver.url)
    status = [with_table(TableState.PARKED, "a value does not fit: 4711")]
    receiver.codes = [500, 302]
    with (
        Webhook(config, lambda: status[0], every_s=_OFTEN_S),
        Webhook(config, lambda: status[0], every_s=_OFTEN_S),  # as run and capture
    ):
        await_that(lambda: len(receiver.accepted) == 1, "it is accepted")
    assert receiver.refused == 2
    (raised,) = receiver.accepted
    assert {**raised, "since": 0, "at": 0} == {
        "event": "raised",
        "id": "parked:lake",
        "kind": "parked",
        "subscription": "lake",
        "what": "lake: 1 table parked (public.b)",
        "prevents_ready": False,
        "slot": config.source.slot,
        "since": 0,
        "at": 0,
    }
    said = [record.getMessage() for record in caplog.records if "webhook" in record.getMessage()]
    failed = "the webhook at 127.0.0.1 does not accept alerts: it answers with status 500"
    assert [text.partition("\n")[0] for text in said] == [
        failed,
        "the webhook at 127.0.0.1 accepts alerts again",
    ]
    assert "s3cret" not in caplog.text
    status[0] = with_capture(is_running=False, phase=None)
    with Webhook(config, lambda: status[0], every_s=_OFTEN_S):
        await_that(lambda: len(receiver.accepted) == 3, "the end and a new problem are accepted")
    events = [(message["event"], message["id"]) for message in receiver.accepted]
    assert events == [
        ("raised", "parked:lake"),
        ("raised", "capture:"),
        ("resolved", "parked:lake"),
    ]


@pytest.mark.parametrize(
    "webhook",
    [
        "http://example.org/x",
        "ftp://example.org",
        "https://",
        "hooks",
        "https://[x/s3cret",
        "https://user:s3cret@example.org/x",
        "https://example.org/s3cret and more",
        r"https://example.org/s3cret\nmore",
        "https://example.org/s3crét",
        "https://..example/s3cret",
        f"https://{'a' * 64}.example/s3cret",
    ],
)
def test_a_webhook_is_an_https_url_or_where_it_is(webhook: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(_WITH_WEBHOOK.format(webhook), Path("/etc/shop.toml"))
    assert "has to be an https URL" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_its_url_can_be_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS_URL", "https://hooks.example.org/s3cret\n")
    assert webhook_url("env:ALERTS_URL") == "https://hooks.example.org/s3cret"
    monkeypatch.setenv("ALERTS_URL", "ftp://hooks.example.org/s3cret")
    with pytest.raises(ConfigError) as caught:
        webhook_url("env:ALERTS_URL")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(MonitorConfig(webhook="https://hooks.example.org/s3cret"))
