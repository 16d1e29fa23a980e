"""``pgsluice run``: replicate, with a live view.

SIGINT and SIGTERM end the run cleanly, after the batch or without it (exit codes 130, 143).
SIGHUP makes it read the configuration's publications again. With ``--once``, a parked table
makes the exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.signals import event_on_sighup, stop_on_signals
from pgsluice.config import Config, load_config
from pgsluice.events import CaptureState, MetricsCallback
from pgsluice.lsn import Lsn

_POLL_S = 1.0


def run(
    config: ConfigArgument,
    once: Annotated[
        bool, typer.Option("--once", help="end at the position that the source has at the start")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Replicate: copy the tables, then follow their changes."""
    from pgsluice.spark.java import require_java

    loaded = load_config(config)
    require_java()
    code = replicate(loaded, once=once, config_path=str(config))
    if code:
        raise typer.Exit(code)


def replicate(
    config: Config, *, once: bool, names: list[str] | None = None, config_path: str
) -> int:
    """Run with a live view, and return the exit code: 130 or 143 after a signal, else 0.

    Raises:
        PgsluiceError: as :func:`pgsluice.subscription.run.run`.
    """
    from pgsluice.monitor.live import LiveView
    from pgsluice.subscription.run import run as run_subscriptions

    with (
        stop_on_signals() as request,
        event_on_sighup() as sighup,
        LiveView(config=config_path) as view,
        _capture_states(config, view),
    ):
        run_subscriptions(
            config,
            once=once,
            names=names,
            report=view,
            stop=request.event,
            reread=lambda: _reread(config, sighup),
            owns_process=True,
        )
    return request.exit_code


def _reread(config: Config, sighup: Event) -> Config | None:
    """The configuration read again, if SIGHUP asked for it; else None."""
    if not sighup.is_set() or config.path is None:
        return None
    sighup.clear()
    return load_config(config.path)


@contextmanager
def _capture_states(config: Config, report: MetricsCallback) -> Iterator[None]:
    """Report the state of the capture process, which it writes to a file."""
    ended = Event()
    thread = Thread(target=_watch, args=(config, report, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(config: Config, report: MetricsCallback, ended: Event) -> None:
    if ended.wait(_POLL_S):
        return
    # Loaded only now: the first second belongs to the start of Spark.
    from pgsluice.capture import read_health

    previous = read_health(config.spool.path)  # perhaps an earlier run's
    while not ended.wait(_POLL_S):
        health = read_health(config.spool.path)
        if health is None or health == previous:
            continue
        previous = health
        report(
            CaptureState(
                health.phase,
                Lsn.parse(health.position),
                Lsn.parse(health.frontier),
                health.lag_bytes,
                health.spool_bytes,
                health.message,
                health.times,
            )
        )
