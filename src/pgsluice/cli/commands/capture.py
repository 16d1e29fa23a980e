"""``pgsluice capture``: only receive, from the slot into the spool."""

from __future__ import annotations

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption, LogFormatOption, OnceOption
from pgsluice.cli.signals import stop_on_signals
from pgsluice.config import load_config
from pgsluice.log_lines import choose_format, format_line


def capture(
    config: ConfigArgument,
    once: OnceOption = False,
    log_format: LogFormatOption = None,
    debug: DebugOption = False,
) -> None:
    """Receive changes into the spool, without applying them."""
    from pgsluice.capture import run_capture
    from pgsluice.monitor.live import LiveView
    from pgsluice.monitor.metrics.serving import monitoring

    choose_format(log_format)
    loaded = load_config(config)
    with (
        stop_on_signals() as request,
        LiveView(formatted=format_line, debug=debug) as view,
        monitoring(loaded),
    ):
        run_capture(loaded, once=once, report=view, stop=request.event)
    if request.exit_code:
        raise typer.Exit(request.exit_code)
