"""Serves metrics, health and the page of a process while it works, if ``[monitor]`` says where; and
the page alone, for ``pgsluice page``."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.util import find_spec

from pgsluice.config import Config
from pgsluice.errors import ConfigError
from pgsluice.hints import values_with_config, with_config
from pgsluice.monitor.metrics.counters import RunCounters
from pgsluice.monitor.metrics.http_server import EVERY_S, TEXT, MonitorServer, Page, Pages, Recent
from pgsluice.monitor.metrics.samples import Sample, process_samples, samples, spark_samples
from pgsluice.monitor.problems import find_problems, report_json
from pgsluice.monitor.status import Status, StatusReader
from pgsluice.monitor.webhook import Webhook
from pgsluice.shown import one_line

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)


@contextmanager
def monitoring(
    config: Config, counters: RunCounters | None = None, every_s: float = EVERY_S
) -> Iterator[None]:
    """Within this context, metrics, health and the page are served, if ``listen`` is set, and
    problems are sent, if ``webhook`` is set.

    Args:
        counters: the counters of the run in this process; None: it only captures.
        every_s: how often to read the status at most.

    Raises:
        ConfigError: the extra ``monitor`` is not installed, or nobody can listen there, or the
            webhook's secret cannot be read.
    """
    monitor = config.monitor
    if monitor.address is None and monitor.webhook is None:
        yield
        return
    status = Recent(StatusReader(config, asks_server=False).read, every_s)
    with ExitStack() as stack:
        if monitor.address is not None:
            require_packages()
            server = MonitorServer(monitor.address, _pages(config, counters, status, every_s))
            stack.enter_context(server)
        if monitor.webhook is not None:
            stack.enter_context(Webhook(config, status))
        yield


def _pages(
    config: Config, counters: RunCounters | None, status: Recent[Status], every_s: float
) -> Pages:
    from prometheus_client import CONTENT_TYPE_LATEST

    from pgsluice.monitor.metrics.families import render

    metrics = Recent(lambda: render(_all_samples(config, status(), counters)), every_s)

    def ready() -> Page:
        problems = find_problems(status(), config)
        is_ready = not any(problem.prevents_ready for problem in problems)
        lines = ["ready" if is_ready else "not ready", *(problem.what for problem in problems)]
        code = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(
            code, TEXT, "".join(f"{one_line(with_config(line))}\n" for line in lines).encode()
        )

    return {
        **status_pages(config, status, every_s),
        "/metrics": lambda: Page(HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics()),
        "/healthz": lambda: Page(HTTPStatus.OK, TEXT, b"ok\n"),
        "/readyz": ready,
    }


def _all_samples(config: Config, status: Status, counters: RunCounters | None) -> Iterator[Sample]:
    yield from samples(status, config)
    if counters is not None:
        yield from counters.samples(with_tables=config.monitor.tables)
        yield from spark_samples()
    yield from process_samples(status.capture.pid if status.capture.is_running else None)


def require_packages() -> None:
    """Raise a ConfigError if the packages of the extra ``monitor`` are not installed."""
    if any(find_spec(package) is None for package in ("prometheus_client", "psutil")):
        raise ConfigError(
            "the option listen in [monitor] needs Python packages that are not installed",
            hint='pip install "pgsluice[monitor]"',
        )


def status_pages(config: Config, status: Callable[[], Status], every_s: float = EVERY_S) -> Pages:
    """The page at ``/``, and ``/status.json``, which is the output of ``pgsluice status --json``.

    Its data are written again at most every ``every_s`` seconds.
    """

    def report() -> bytes:
        values = values_with_config(report_json(status(), config))
        return json.dumps(values, separators=(",", ":")).encode()

    made = Recent(report, every_s)
    return {
        "/": _page,
        "/status.json": lambda: Page(HTTPStatus.OK, "application/json", made()),
    }


def page_server(config: Config, port: int) -> MonitorServer:
    """Serves the page on loopback, from the spool's files alone.

    Args:
        port: the port to listen at; 0: a free one.

    Raises:
        ConfigError: it is not possible to listen there.
    """
    status = Recent(StatusReader(config, asks_server=False).read, EVERY_S)
    return MonitorServer(("127.0.0.1", port), status_pages(config, status), setting="--port")


@cache
def _page() -> Page:
    """One file, ``status.html``, with its style and its script.

    Its Content-Security-Policy allows exactly these two, by their hashes, and requests to nothing
    but the server it came from. So a table's name cannot become code, even if the script had an
    error.
    """
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
