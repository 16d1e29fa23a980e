"""``pgsluice run``: replicate, and show how it goes.

SIGINT and SIGTERM finish or abandon the batch cleanly (130, 143). With ``--once`` a parked
table makes the exit code 1: what was asked for is not all done. SIGHUP has the configuration's
publications read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.signals import asked_by_sighup, stop_on_signals
from pgsluice.config import Config, load_config
from pgsluice.events import CaptureState, MetricsCallback
from pgsluice.lsn import Lsn

_LOOK_S = 1.0


def run(
    config: ConfigArgument,
    once: Annotated[
        bool, typer.Option("--once", help="up to the source's position at the start, then end")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Replicate: receive, copy, and apply to the targets."""
    from pgsluice.spark.java import require_java

    loaded = load_config(config)
    require_java()
    code = replicate(loaded, once=once)
    if code:
        raise typer.Exit(code)


def replicate(config: Config, *, once: bool, names: list[str] | None = None) -> int:
    """Run with a live view; the exit code that a signal asks for, else 0.

    Raises:
        PgsluiceError: as :func:`pgsluice.subscription.run.run`.
    """
    from pgsluice.monitor.live import LiveView
    from pgsluice.subscription.run import raise_parked
    from pgsluice.subscription.run import run as run_subscriptions

    with (
        stop_on_signals() as request,
        asked_by_sighup() as asked,
        LiveView() as view,
        _capture_states(config, view),
    ):
        run_subscriptions(
            config,
            once=once,
            names=names,
            report=view,
            stop=request.event,
            reread=lambda: _reread(config, asked),
        )
    if once and not request.exit_code:
        raise_parked(config, names)
    return request.exit_code


def _reread(config: Config, asked: Event) -> Config | None:
    """The configuration as its file has it now, when somebody asked for that."""
    if not asked.is_set() or config.path is None:
        return None
    asked.clear()
    return load_config(config.path)


@contextmanager
def _capture_states(config: Config, report: MetricsCallback) -> Iterator[None]:
    """Report what capture, a process of its own, writes of itself."""
    ended = Event()
    thread = Thread(target=_watch, args=(config, report, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(config: Config, report: MetricsCallback, ended: Event) -> None:
    from pgsluice.capture import read_health

    before = read_health(config.spool.path)  # of an earlier run
    while not ended.wait(_LOOK_S):
        health = read_health(config.spool.path)
        if health is None or health == before:
            continue
        before = health
        report(
            CaptureState(
                health.phase,
                Lsn.parse(health.position),
                Lsn.parse(health.frontier),
                health.lag_bytes,
                health.spool_bytes,
                health.message,
            )
        )
