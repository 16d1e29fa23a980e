"""``pgsluice status``: slot, spool, subscriptions and tables, as text, as JSON, or as one line.

With ``--check`` the exit code is 1 if something is wrong by the thresholds of ``[monitor]``, for
cron, probes of containers, and monitoring without Prometheus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption, JsonOption
from pgsluice.cli.output import say_json, say_line
from pgsluice.config import load_config
from pgsluice.errors import ExitCode

if TYPE_CHECKING:
    from pgsluice.monitor.problems import Problem
    from pgsluice.monitor.status import Status

_PATIENCE_S = 2.0
"""How long to wait for capture's report: it reports the server's position about once a second."""


def status(
    config: ConfigArgument,
    as_json: JsonOption = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="print one line; exit code 1 if it names a problem"),
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="do not connect to the source: show what capture knows"),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Show state, position and lag of slot, spool and tables.

    With --check: exit code 0 if nothing is wrong, 1 if the line names a problem.
    """
    from pgsluice.monitor.problems import find_problems, report_json
    from pgsluice.monitor.status import read_status

    loaded = load_config(config)
    current = read_status(loaded, patience_s=_PATIENCE_S, asks_server=not offline)
    problems = find_problems(current, loaded)
    if as_json:
        say_json(report_json(current, loaded), indent=2)
    elif check:
        say_line(summary(current, problems))
    else:
        from pgsluice.cli.status_view import show
        from pgsluice.monitor.display import plain_console

        show(current, plain_console())
    if check and problems:
        raise typer.Exit(ExitCode.FAILED)


def summary(status: Status, problems: Sequence[Problem]) -> str:
    """The one line that ``pgsluice status --check`` prints."""
    from pgsluice.monitor.wording import counted, format_seconds

    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        return f"{count}: {'; '.join(problem.what for problem in problems)}"
    tables = sum(len(each.tables) for each in status.subscriptions)
    lag_s = max((each.lag_s or 0.0 for each in status.subscriptions), default=0.0)
    return f"ok: {counted(tables, 'table')}, {format_seconds(lag_s)} behind"
