"""``pgsluice run``: replicate, with a live view.

SIGINT and SIGTERM end the run cleanly, after the batch or without it (exit codes 130, 143).
SIGHUP makes it read the configuration again; it takes over most settings of subscriptions. With
``--once``, a parked table makes the exit code 1.
"""

from __future__ import annotations

from threading import Event
from typing import Annotated

import typer

from pgsluice import __version__
from pgsluice.cli.options import ConfigArgument, DebugOption, LogFormatOption, OnceOption
from pgsluice.cli.signals import event_on_sighup, stop_on_signals
from pgsluice.config import Config, load_config
from pgsluice.events import MetricsEvent, RunStep
from pgsluice.log_lines import choose_format, format_line


def run(
    config: ConfigArgument,
    once: OnceOption = False,
    without_capture: Annotated[
        bool,
        typer.Option(
            "--without-capture",
            help="only apply: another process captures, perhaps on another machine",
        ),
    ] = False,
    log_format: LogFormatOption = None,
    debug: DebugOption = False,
) -> None:
    """Replicate: copy the tables, then follow their changes.

    --debug prints a line for each batch, too.
    """
    choose_format(log_format)
    loaded = load_config(config)
    code = replicate(
        loaded, once=once, captures=not without_capture, config_path=str(config), debug=debug
    )
    if code:
        raise typer.Exit(code)


def replicate(
    config: Config,
    *,
    once: bool,
    captures: bool = True,
    names: list[str] | None = None,
    config_path: str,
    debug: bool = False,
) -> int:
    """Run with a live view, and return the exit code: 130 or 143 after a signal, else 0.

    Args:
        captures: receive, too; otherwise another process does.
        debug: print a line for each batch.
    """
    from pgsluice.monitor.live import LiveView

    with (
        stop_on_signals() as request,
        event_on_sighup() as sighup,
        LiveView(formatted=format_line, debug=debug) as view,
    ):
        # Before the imports, which take seconds.
        view(RunStep(f"pgsluice {__version__} starts with {config_path}"))
        from pgsluice.monitor.metrics.counters import RunCounters
        from pgsluice.monitor.metrics.serving import monitoring
        from pgsluice.spark.session.java import require_java
        from pgsluice.subscription.running.run import run as run_subscriptions

        require_java()
        enabled = [each.name for each in config.subscriptions if each.enabled]
        counters = RunCounters(names or enabled)

        def report(event: MetricsEvent) -> None:
            counters(event)
            view(event)

        with monitoring(config, counters):
            run_subscriptions(
                config,
                once=once,
                captures=captures,
                names=names,
                report=report,
                stop=request.event,
                reread=lambda: _reread(config, sighup),
                owns_process=True,
            )
    return request.exit_code


def _reread(config: Config, sighup: Event) -> Config | None:
    """The configuration, read again if SIGHUP requested it; else None."""
    if not sighup.is_set() or config.path is None:
        return None
    sighup.clear()
    return load_config(config.path)
