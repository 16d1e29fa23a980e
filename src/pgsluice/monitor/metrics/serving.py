"""Serves metrics, health and the page of a process while it works, if ``[monitor]`` says where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from importlib.util import find_spec

from pgsluice.config import Config
from pgsluice.errors import ConfigError
from pgsluice.hints import with_config
from pgsluice.monitor.metrics.counters import RunCounters
from pgsluice.monitor.metrics.http_server import TEXT, MonitorServer, Page, Pages
from pgsluice.monitor.metrics.recent import EVERY_S, Recent
from pgsluice.monitor.metrics.samples import Sample, samples, spark_samples
from pgsluice.monitor.page.pages import status_pages
from pgsluice.monitor.problems import find_problems
from pgsluice.monitor.status import Status, StatusReader
from pgsluice.monitor.webhook import Webhook
from pgsluice.shown import one_line


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
    from pgsluice.monitor.metrics.exposition import CONTENT_TYPE, render

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
        "/metrics": lambda: Page(HTTPStatus.OK, CONTENT_TYPE, metrics()),
        "/healthz": lambda: Page(HTTPStatus.OK, TEXT, b"ok\n"),
        "/readyz": ready,
    }


def _all_samples(config: Config, status: Status, counters: RunCounters | None) -> Iterator[Sample]:
    from pgsluice.monitor.metrics.processes import process_samples

    yield from samples(status, config)
    if counters is not None:
        yield from counters.samples(with_tables=config.monitor.tables)
        yield from spark_samples()
    yield from process_samples(status.capture.pid if status.capture.is_running else None)


def require_packages() -> None:
    """Refuse ``listen`` without the packages that it needs.

    Raises:
        ConfigError: the extra ``monitor`` is not installed.
    """
    if any(find_spec(package) is None for package in ("prometheus_client", "psutil")):
        raise ConfigError(
            "the option listen in [monitor] needs Python packages that are not installed",
            hint='pip install "pgsluice[monitor]"',
        )
