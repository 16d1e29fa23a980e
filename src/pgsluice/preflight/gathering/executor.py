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
from pgsluice.preflight.gathering.local import folder_problem, nearest_existing, version_of
from pgsluice.stores.probe import why_unfit
from pgsluice.stores.spool_place import SpoolPlace

_SAME_PATH = "mount it there under the same path, or use an object store (docs/clusters.md)"


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder that the driver and the executors have to share.

    Attributes:
        subject: what it is for, in a word.
        path: the folder.
        mark: a file in it, or in its nearest parent that exists, which the driver has written.
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


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem of an executor; as a :class:`~pgsluice.preflight.findings.Finding`."""

    subject: str
    what: str
    todo: str | None


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


def troubles_here(work: ExecutorWork) -> Sequence[Trouble]:
    """The problems on this machine; empty: there are none."""
    checks = (_of_version, _of_folders, _of_spool, _of_sinks, _of_source)
    return [trouble for check in checks for trouble in check(work)]


def _of_version(work: ExecutorWork) -> Iterator[Trouble]:
    here = version_of("pgsluice")
    if here != work.version:
        what = f"has pgsluice {here}, and the driver has {work.version}"
        yield Trouble("pgsluice", what, "install the same version")


def _of_folders(work: ExecutorWork) -> Iterator[Trouble]:
    for folder in work.folders:
        if not Path(folder.mark).exists():
            yield Trouble(folder.subject, f"does not see the driver's {folder.path}", _SAME_PATH)
        elif problem := folder_problem(Path(folder.path)):
            yield Trouble(folder.subject, f"cannot write to {folder.path}: {problem}", _SAME_PATH)


def _of_spool(work: ExecutorWork) -> Iterator[Trouble]:
    place = work.spool
    if place is None:
        return
    try:
        problem = why_unfit(f"{place}/{{table}}", place.options)
    except ImportError as error:
        yield Trouble("spool", f"lacks a package: {error}", "install pgsluice with its extras")
        return
    except PgsluiceError as error:
        problem = error.what
    if problem:
        yield Trouble("spool", f"cannot reach {place}: {problem}", None)


def _of_sinks(work: ExecutorWork) -> Iterator[Trouble]:
    for name, options in work.sinks.items():
        subject = f'target of "{name}"'
        try:
            sink = parse_sink(options)
            sink.make(foreign_writes="park", cut_retention_s=0.0)
            is_on_disk = sink.folder_on_disk is not None
            problem = None if is_on_disk else sink.why_unreachable()
        except PgsluiceError as error:
            yield Trouble(subject, error.what, error.hint)
        except ImportError as error:
            yield Trouble(subject, f"lacks a package: {error}", "install pgsluice with its extras")
        else:
            if problem:
                yield Trouble(subject, f"cannot reach {sink.target}: {problem}", None)


def _of_source(work: ExecutorWork) -> Iterator[Trouble]:
    if work.dsn is None:
        return
    from pgsluice.replication import connect_sql

    try:
        connect_sql(work.dsn, timeout_s=work.connect_timeout_s, application="check").close()
    except PgsluiceError as error:
        yield Trouble("source", f"cannot connect for copies: {error.what}", error.hint)
