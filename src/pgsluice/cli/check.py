"""``pgsluice check``: is the source, slot, publication, spool and target fit?

One line a check and, unless it is fine, what to do. Exit code 1 on an error; warnings alone
are 0. It changes nothing, on no side.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer
from rich.console import Console
from rich.text import Text

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import load_config
from pgsluice.monitor.findings import Finding, Level

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def check(config: ConfigArgument, debug: DebugOption = False) -> None:
    """Is everything fit to run? One line a check, what to do, exit code 1 on an error."""
    from pgsluice.monitor.examine import examine

    loaded = load_config(config)
    counts = show(examine(loaded), Console(), str(config))
    if counts[Level.ERROR]:
        raise typer.Exit(1)


def show(findings: Iterable[Finding], console: Console, config: str) -> dict[Level, int]:
    """Print findings as they come; how many there were of each level."""
    counts = dict.fromkeys(Level, 0)
    for finding in findings:
        counts[finding.level] += 1
        line = Text(f"{finding.level:<8}", style=_STYLES[finding.level])
        line.append(f"{finding.subject}: {finding.what}", style="default")
        console.print(line, soft_wrap=True, highlight=False)
        for todo in (finding.todo or "").replace("CONFIG", config).splitlines():
            console.print(Text(f"         → {todo}"), soft_wrap=True, highlight=False)
    console.print(Text(_summary(counts)), highlight=False)
    return counts


def _summary(counts: dict[Level, int]) -> str:
    if not counts[Level.ERROR] and not counts[Level.WARNING]:
        return "all is fit"
    words = [
        f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}"
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    return " and ".join(words)
