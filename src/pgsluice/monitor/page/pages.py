"""The page at ``/``, and ``/status.json``, which is the output of ``pgsluice status --json``.

The page is one file, ``status.html``, with its style and its script. Its Content-Security-Policy
allows exactly these two, by their hashes, and requests to nothing but the server it came from. So
a table's name cannot become code, even if the script had an error.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files

from pgsluice.config import Config
from pgsluice.hints import values_with_config
from pgsluice.monitor.metrics.http_server import MonitorServer, Page, Pages
from pgsluice.monitor.metrics.recent import EVERY_S, Recent
from pgsluice.monitor.problems import report_json
from pgsluice.monitor.status import Status, StatusReader

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)


def status_pages(config: Config, status: Callable[[], Status], every_s: float = EVERY_S) -> Pages:
    """The page and its data.

    Args:
        status: the status, which many requests may share.
        every_s: how often to write the data again at most.
    """
    made = Recent(lambda: _report(config, status()), every_s)
    return {
        "/": _page,
        "/status.json": lambda: Page(HTTPStatus.OK, "application/json", made()),
    }


def page_server(config: Config, port: int, every_s: float = EVERY_S) -> MonitorServer:
    """Serves the page on loopback, from the spool's files alone.

    Args:
        port: the port to listen at; 0: a free one.
        every_s: how often to read the status at most.

    Raises:
        ConfigError: it is not possible to listen there.
    """
    status = Recent(StatusReader(config, asks_server=False).read, every_s)
    pages = status_pages(config, status, every_s)
    return MonitorServer(("127.0.0.1", port), pages, setting="--port")


def _report(config: Config, status: Status) -> bytes:
    report = values_with_config(report_json(status, config))
    return json.dumps(report, separators=(",", ":")).encode()


@cache
def _page() -> Page:
    body = (files(__package__) / "status.html").read_bytes()
    allowed = {
        name.decode(): f"'sha256-{b64encode(sha256(content).digest()).decode()}'"
        for name, content in _INLINE.findall(body)
    }
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    return Page(HTTPStatus.OK, "text/html; charset=utf-8", body, headers)
