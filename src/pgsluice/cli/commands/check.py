"""``pgsluice check``: can the configuration run? Source, slot, publications, spool, targets.

It prints one line for each check and, if it failed, what to do. The exit code is 1 on an error, and
0 if there are only warnings. Nothing is changed, neither on the server nor here. With a cluster's
master, it starts a Spark application, which runs a small task on each executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import Config, load_config
from pgsluice.errors import ExitCode
from pgsluice.hints import with_config
from pgsluice.preflight.findings import Finding, Level
from pgsluice.shown import shown, shown_lines

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def check(config: ConfigArgument, debug: DebugOption = False) -> None:
    """Check that everything is ready to run, and say what to do."""
    from pgsluice.monitor.display import plain_console

    counts = show(_findings(load_config(config)), plain_console(), str(config))
    if counts[Level.ERROR]:
        raise typer.Exit(ExitCode.FAILED)


def _findings(config: Config) -> Iterator[Finding]:
    from pgsluice.cli.executor_checks import executor_findings
    from pgsluice.preflight.checks import run_checks

    local = []
    for finding in run_checks(config):
        local.append(finding)
        yield finding
    yield from executor_findings(config, local)


def show(findings: Iterable[Finding], console: Console, config: str) -> dict[Level, int]:
    """Print findings as they arrive, and return the number of findings of each level."""
    from rich.text import Text

    counts = dict.fromkeys(Level, 0)
    for finding in findings:
        counts[finding.level] += 1
        line = Text(f"{finding.level:<8}", style=_STYLES[finding.level])
        line.append(
            shown_lines(with_config(f"{finding.subject}: {finding.what}", config)), style="default"
        )
        console.print(line, soft_wrap=True, highlight=False)
        mark = "→"  # only before the first line: the others can be copied together
        for todo in with_config(finding.todo or "", config).split("\n") if finding.todo else ():
            console.print(Text(shown(f"         {mark} {todo}")), soft_wrap=True, highlight=False)
            mark = " "
    console.print(Text(_summary(counts)), highlight=False)
    return counts


def _summary(counts: dict[Level, int]) -> str:
    if not counts[Level.ERROR] and not counts[Level.WARNING]:
        return "all checks passed"
    words = [
        f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}"
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    return " and ".join(words)
