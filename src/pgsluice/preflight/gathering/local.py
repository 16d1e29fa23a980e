"""Gathers facts about this machine: folders, file systems and installed packages."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pgsluice.capture.health import read_health
from pgsluice.capture.source.timeline import History, Received
from pgsluice.config import Config, MonitorConfig, SubscriptionConfig
from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.monitor.metrics.http_server import MonitorServer
from pgsluice.monitor.metrics.serving import require_packages
from pgsluice.monitor.source_status import CaptureStatus
from pgsluice.preflight.facts import LocalFacts, SpoolFacts, TargetFacts
from pgsluice.replication import SystemIdentity
from pgsluice.spark.session.java import find_java
from pgsluice.spool import Spool, SpoolReader, SubscriptionRecord
from pgsluice.stores.probe import why_unfit
from pgsluice.stores.spool_place import SpoolPlace


def gather_spool(place: SpoolPlace) -> SpoolFacts:
    """Read the spool's folder and the spool in it; never raises because of its state."""
    identity, received, has_frontier, problem = None, None, True, None
    try:
        if Spool.exists(place):
            identity = Spool.open(place).identity
        if SpoolReader.is_there(place):
            reader = SpoolReader(place)
            history = History(reader.spool.identity.timeline, reader.spool.identity.history)
            received = Received(history, reader.position(), reader.frontier())
            has_frontier = reader.spool.has_frontier_file()
    except PgsluiceError as error:
        problem = error
    return SpoolFacts(
        path=str(place),
        state=str(place.folder) if place.is_remote else None,
        problem=_spool_problem(place),
        file_system=file_system_of(place.folder),
        free_bytes=shutil.disk_usage(nearest_existing(place.folder)).free,
        identity=identity,
        received=received,
        has_frontier=has_frontier,
        unreadable=None if problem is None else problem.what,
        way_out=None if problem is None else problem.hint,
    )


def gather_local(config: Config, spool: SpoolFacts, system: SystemIdentity | None) -> LocalFacts:
    """Read the targets' folders and the installed software."""
    targets = [_target(subscription) for subscription in config.subscriptions]
    return LocalFacts(
        config,
        spool,
        system,
        tuple(targets),
        find_java(),
        version_of("pyspark"),
        version_of("deltalake"),
        _records(config.spool.place),
        CaptureStatus.of(read_health(config.spool.folder)),
        monitor_problem(config.monitor),
    )


def monitor_problem(monitor: MonitorConfig) -> PgsluiceError | None:
    """Why metrics could not be served; None: they could, or need not be."""
    if monitor.address is None:
        return None
    try:
        require_packages()
        MonitorServer(monitor.address, {}).close()
    except ConfigError as error:
        return error
    return None


def _target(subscription: SubscriptionConfig) -> TargetFacts:
    sink = subscription.sink
    if (folder := sink.folder_on_disk) is not None:
        problem = folder_problem(folder) or sink.why_unreachable()
        return TargetFacts(subscription.name, str(folder), problem)
    return TargetFacts(subscription.name, sink.target, sink.why_unreachable())


def _spool_problem(place: SpoolPlace) -> str | None:
    """Why the spool cannot be written, tried by writing; None: it can."""
    problem = folder_problem(place.folder)
    if place.url is None:
        return problem
    if problem is not None:
        return f'its "state" {place.folder}: {problem}'
    return why_unfit(f"{place.url}/{{table}}", place.options)


def _records(place: SpoolPlace) -> tuple[SubscriptionRecord, ...]:
    """The subscriptions' records; empty if they are unreadable, which another check reports."""
    try:
        return tuple(Spool.open(place).subscriptions()) if Spool.exists(place) else ()
    except PgsluiceError:
        return ()


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def folder_problem(path: Path) -> str | None:
    """Why nothing can be written to a folder, which need not exist yet; None if it can."""
    existing = nearest_existing(path)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        # As a run does: some file systems, such as /proc, allow it and then refuse.
        with (
            tempfile.TemporaryDirectory(dir=existing, prefix=".pgsluice-") as made,
            tempfile.TemporaryFile(dir=made) as file,
        ):
            file.write(b"\0")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if existing != path:
            return f"it does not exist and cannot be made in {existing}: {error.strerror}"
        return f"it is not writable: {error.strerror}"
    return None


def nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The file system's type as Linux names it (``ext4``, ``nfs4``); None if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = nearest_existing(path).resolve()
    deepest: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        # Of mounts at the same point, the last one hides those before it.
        if real.is_relative_to(mount) and (deepest is None or len(mount.parts) >= deepest[0]):
            deepest = (len(mount.parts), after.split()[0])
    return deepest[1] if deepest else None
