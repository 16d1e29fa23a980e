"""``pgsluice check``: can the configuration run? Source, slot, publications, spool, targets.

It prints one line for each check and, if it failed, what to do. The exit code is 1 on an error, and
0 if there are only warnings. Nothing is changed, neither on the server nor here. With a cluster's
master, it starts a Spark application, which runs a small task on each executor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import Config, load_config
from pgsluice.errors import ExitCode, PgsluiceError
from pgsluice.hints import with_config
from pgsluice.preflight.findings import Finding, Level, error, ok
from pgsluice.shown import shown, shown_lines

if TYPE_CHECKING:
    from rich.console import Console

    from pgsluice.spark.jobs.executors import ExecutorAnswer

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def check(config: ConfigArgument, debug: DebugOption = False) -> None:
    """Check that everything is ready to run, and say what to do."""
    from pgsluice.monitor.display import plain_console

    counts = show(_findings(load_config(config)), plain_console())
    if counts[Level.ERROR]:
        raise typer.Exit(ExitCode.FAILED)


def _findings(config: Config) -> Iterator[Finding]:
    from pgsluice.preflight.checks import run_checks

    local = []
    for finding in run_checks(config):
        local.append(finding)
        yield finding
    yield from executor_findings(config, local)


def show(findings: Iterable[Finding], console: Console) -> dict[Level, int]:
    """Print findings as they arrive, and return the number of findings of each level."""
    from rich.text import Text

    counts = dict.fromkeys(Level, 0)
    for finding in findings:
        counts[finding.level] += 1
        line = Text(f"{finding.level:<8}", style=_STYLES[finding.level])
        line.append(shown_lines(with_config(f"{finding.subject}: {finding.what}")), style="default")
        console.print(line, soft_wrap=True, highlight=False)
        mark = "→"  # only before the first line: the others can be copied together
        for todo in with_config(finding.todo or "").split("\n") if finding.todo else ():
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


def executor_findings(config: Config, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Ask the executors of a cluster, unless this machine's findings have an error they share."""
    from pgsluice.spark.session.master import DEFAULT_MASTER, is_local

    if is_local(config.spark.get("spark.master", DEFAULT_MASTER)):
        return
    failed = {each.subject for each in findings if each.level is Level.ERROR}
    if failed & {"spool", "target", "java", "pyspark", "deltalake"}:
        return
    try:
        answers = _answers(config, has_source="source" not in failed)
    except (PgsluiceError, OSError) as problem:
        hint = problem.hint if isinstance(problem, PgsluiceError) else None
        yield error("executors", str(getattr(problem, "what", problem)), hint)
        return
    yield from _of_executors(answers)


def _answers(config: Config, *, has_source: bool) -> list[ExecutorAnswer]:
    from pgsluice.preflight.gathering.executor import executor_work, troubles_here
    from pgsluice.spark.jobs.executors import ask_executors
    from pgsluice.spark.session.starting_context import StartingContext

    with (
        tempfile.TemporaryDirectory(prefix="pgsluice-check-") as folder,
        executor_work(config, has_source=has_source) as work,
    ):
        log = Path(folder) / "spark.log"
        starting = StartingContext(config.spark, "pgsluice check", log, owns_process=True)
        try:
            return ask_executors(starting.wait(lambda: None), troubles_here, work)
        finally:
            starting.end()


def _of_executors(answers: Sequence[ExecutorAnswer]) -> Iterator[Finding]:
    seen = set()
    for answer in answers:
        subject = f"executor on {answer.host}"
        if answer.lacks is not None:
            found = [
                error(
                    subject,
                    f"the executor cannot import pgsluice: {answer.lacks}",
                    "install pgsluice with its extras for the Python that Spark's executors use "
                    "(docs/clusters.md)",
                )
            ]
        else:
            found = [
                error(subject, f"{each.subject}: {each.what}", each.todo) for each in answer.result
            ]
        for finding in found:
            if finding not in seen:  # of several executors on one machine
                seen.add(finding)
                yield finding
    if not seen:
        hosts = sorted({answer.host for answer in answers})
        yield ok(
            "executors",
            f"{len(answers)} on {', '.join(hosts)} see the spool, the targets and the source",
        )
