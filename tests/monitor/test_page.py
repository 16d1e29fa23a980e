"""The page and its data: one source of truth, one file, and nothing foreign that could run.

What a browser makes of it is shown by tests/soak/test_page.py.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.monitor.test_problems import CONFIG, LAKE, READY, WELL
from tests.support.commands import Command, WriteConfig
from tests.support.commands import pgsluice as pgsluice
from tests.support.commands import write_config as write_config
from tests.support.odd_names import ODD_NAMES
from tests.support.waiting import HANGS_S

from pgsluice.config import load_config
from pgsluice.errors import ConfigError
from pgsluice.monitor.metrics.http_server import MonitorServer
from pgsluice.monitor.metrics.serving import page_server, status_pages

_ODD = ["<script>alert(1)</script>", "\ud800", *ODD_NAMES]


def _ask(port: int, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    tables = tuple(replace(READY, name=name) for name in _ODD)
    error = "no key\n  → `pgsluice copy CONFIG t`"
    failing = replace(READY, name="t", error=error)
    status = replace(WELL, subscriptions=(replace(LAKE, tables=(*tables, failing)),))
    with MonitorServer(("127.0.0.1", 0), status_pages(CONFIG, lambda: status)) as server:
        yield server.port


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else(port: int) -> None:
    answer, body = _ask(port, "/")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    for name in ("style", "script"):
        (inline,) = re.findall(rf"<{name}>(.*?)</{name}>", body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_is_one_file_that_makes_no_html_from_text(port: int) -> None:
    page = _ask(port, "/")[1].decode()
    assert set(re.findall(r"\w+://[^\s'\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", page)
    assert not re.search(r"<[^>]+\s(style|on\w+)=", page.partition("<script>")[0])


def test_names_of_any_kind_arrive_as_they_are(port: int) -> None:
    answer, body = _ask(port, "/status.json")
    assert answer.headers["Content-Type"] == "application/json"
    assert body.isascii()
    names = [table["table"] for table in json.loads(body)["subscriptions"][0]["tables"]]
    assert names == [*_ODD, "t"]


def test_large_answers_are_compressed_for_clients_that_accept_it(port: int) -> None:
    plain = _ask(port, "/status.json")
    packed = _ask(port, "/status.json", **{"Accept-Encoding": "gzip, br"})
    assert plain[0].headers["Content-Encoding"] is None
    assert packed[0].headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed[1]) == plain[1]


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:9187", 200),
        ("localhost", 200),
        ("[::1]:9187", 200),
        ("evil.example:9187", 421),
        ("127.0.0.1.evil.example", 421),
        ("[nonsense", 421),
    ],
)
def test_a_website_whose_name_means_loopback_reads_nothing(port: int, host: str, code: int) -> None:
    assert _ask(port, "/status.json", Host=host)[0].status == code


def test_the_page_shows_what_status_prints_while_nothing_runs(
    pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config("host=127.0.0.1 port=1 dbname=shop")
    printed = json.loads(pgsluice("status", path, "--json", "--offline").out)
    with page_server(load_config(path), 0) as server:
        served = json.loads(_ask(server.port, "/status.json")[1])
        assert _ask(server.port, "/")[0].status == 200
        with pytest.raises(ConfigError, match=f"--port: .* at 127.0.0.1:{server.port}: "):
            page_server(load_config(path), server.port)
    assert served.pop("read_at") >= printed.pop("read_at")
    assert served == printed
    assert [problem["kind"] for problem in served["problems"]] == ["capture", "run"]
    assert not Path(load_config(path).spool.folder).exists()
