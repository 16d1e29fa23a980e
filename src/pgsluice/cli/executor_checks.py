"""``pgsluice check`` on the executors of a cluster: one small task on each of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.preflight.findings import Finding, error, ok
from pgsluice.preflight.gathering.executor import executor_work, troubles_here
from pgsluice.spark.session.master import DEFAULT_MASTER, is_local

if TYPE_CHECKING:
    from pgsluice.spark.jobs.executors import ExecutorAnswer


def executor_findings(config: Config, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Ask each executor, if the master is a cluster's.

    Args:
        findings: those of this machine; with an error of the spool or of a target, the executors
            are not asked.
    """
    if is_local(config.spark.get("spark.master", DEFAULT_MASTER)):
        return
    failed = {each.subject for each in findings if each.level == "error"}
    if failed & {"spool", "target", "java", "pyspark", "deltalake"}:
        return
    try:
        answers = _answers(config, has_source="source" not in failed)
    except (PgsluiceError, OSError) as problem:
        hint = problem.hint if isinstance(problem, PgsluiceError) else None
        yield error("executors", str(getattr(problem, "what", problem)), hint)
        return
    yield from _findings(answers)


def _answers(config: Config, *, has_source: bool) -> list[ExecutorAnswer]:
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


def _findings(answers: Sequence[ExecutorAnswer]) -> Iterator[Finding]:
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
