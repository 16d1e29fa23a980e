"""What an executor sees of a run: the spool, the targets and the source. Runs on the executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pgsluice.config import Config, parse_sink
from pgsluice.errors import PgsluiceError
from pgsluice.preflight.findings import Finding, error
from pgsluice.preflight.gathering.local import folder_problem, nearest_existing, version_of
from pgsluice.stores.probe import why_unfit
from pgsluice.stores.spool_place import SpoolPlace

_SAME_PATH = "mount it there under the same path, or use an object store (docs/clusters.md)"


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder that the driver and the executors have to share.

    The driver has written the file ``mark`` into it, or into its nearest parent that exists.
    """

    subject: str
    path: str
    mark: str


@dataclass(frozen=True, slots=True)
class ExecutorWork:
    """What an executor checks; picklable.

    Attributes:
        version: the driver's version of pgsluice; None: it was not installed as a package.
        folders: those on disks.
        spool: the spool, if it is in an object store.
        sinks: the options of each subscription's sink, by its name.
        dsn: the source, which copies read; None: it is not reachable from the driver either.
    """

    version: str | None
    folders: tuple[SharedFolder, ...]
    spool: SpoolPlace | None
    sinks: Mapping[str, Mapping[str, Any]]
    dsn: str | None
    connect_timeout_s: float


@contextmanager
def executor_work(config: Config, *, has_source: bool = True) -> Iterator[ExecutorWork]:
    """The work for a configuration; marks lie in its folders as long as the context is open."""
    place = config.spool.place
    folders = {} if place.is_remote else {"spool": place.folder}
    for each in config.subscriptions:
        if (target := each.sink.folder_on_disk) is not None:
            folders[f'target of "{each.name}"'] = target
    with ExitStack() as marks:
        shared = []
        for subject, folder in folders.items():
            there = nearest_existing(folder)
            mark = marks.enter_context(NamedTemporaryFile(dir=there, prefix=".pgsluice-check-"))
            shared.append(SharedFolder(subject, str(folder), mark.name))
        yield ExecutorWork(
            version_of("pgsluice"),
            tuple(shared),
            place if place.is_remote else None,
            {each.name: each.sink.model_dump(mode="json") for each in config.subscriptions},
            config.source.conninfo if has_source else None,
            config.source.connect_timeout_s,
        )


def troubles_here(work: ExecutorWork) -> Sequence[Finding]:
    """The problems on this machine; empty: there are none."""
    checks = (_of_version, _of_folders, _of_spool, _of_sinks, _of_source)
    return [problem for check in checks for problem in check(work)]


def _of_version(work: ExecutorWork) -> Iterator[Finding]:
    here = version_of("pgsluice")
    if here != work.version:
        what = f"has pgsluice {here}, and the driver has {work.version}"
        yield error("pgsluice", what, "install the same version")


def _of_folders(work: ExecutorWork) -> Iterator[Finding]:
    for folder in work.folders:
        if not Path(folder.mark).exists():
            yield error(folder.subject, f"does not see the driver's {folder.path}", _SAME_PATH)
        elif problem := folder_problem(Path(folder.path)):
            yield error(folder.subject, f"cannot write to {folder.path}: {problem}", _SAME_PATH)


def _of_spool(work: ExecutorWork) -> Iterator[Finding]:
    place = work.spool
    if place is None:
        return
    try:
        problem = why_unfit(f"{place}/{{table}}", place.options)
    except ImportError as reason:
        yield error("spool", f"lacks a package: {reason}", "install pgsluice with its extras")
        return
    except PgsluiceError as reason:
        problem = reason.what
    if problem:
        yield error("spool", f"cannot reach {place}: {problem}", None)


def _of_sinks(work: ExecutorWork) -> Iterator[Finding]:
    for name, options in work.sinks.items():
        subject = f'target of "{name}"'
        try:
            sink = parse_sink(options)
            sink.make(foreign_writes="park", cut_retention_s=0.0)
            is_on_disk = sink.folder_on_disk is not None
            problem = None if is_on_disk else sink.why_unreachable()
        except PgsluiceError as reason:
            yield error(subject, reason.what, reason.hint)
        except ImportError as reason:
            yield error(subject, f"lacks a package: {reason}", "install pgsluice with its extras")
        else:
            if problem:
                yield error(subject, f"cannot reach {sink.target}: {problem}", None)


def _of_source(work: ExecutorWork) -> Iterator[Finding]:
    if work.dsn is None:
        return
    from pgsluice.replication import connect_sql

    try:
        connect_sql(work.dsn, timeout_s=work.connect_timeout_s, application="check").close()
    except PgsluiceError as reason:
        yield error("source", f"cannot connect for copies: {reason.what}", reason.hint)
