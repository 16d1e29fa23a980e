"""The layout of a spool's folder: the names of all its files, and their codecs.

::

    <spool>/identity.json                   the source that the spool belongs to
            start.json                      where the chain of segments begins
            frontier.json                   everything up to here was received
            commits.json                    the last commits of segments that were deleted
            epoch.json  writer.lock         the writer's
            released.json                   holds that the size limit dropped
            capture.json                    the state of capture
            alerts.json  alerts.lock        problems that the webhook knows of
            spark.log                       Spark's output
            segments/<UTC hour>/<end>-<start>-<epoch>[.ref].arrow
            parts/<UTC hour>/<epoch>-<transaction>-<number>.arrow
            prepared/<UTC hour>/<prepare LSN>-<xid>.arrow
            subscriptions/<name>/record.json  lock  requests/  checkpoint/
                                 barrier.json  barrier.lock  barrier.answer.json
                                 copies.snapshot  copies.journal  copies.json
                                 settings.json  catalog.json  verified.json  leftovers.json
                                 rejects/
                                 snapshot/complete.json  snapshot/<attempt>-<number>-<random>.arrow

A spool in an object store has ``identity.json`` to ``released.json``, ``segments``, ``parts`` and
``prepared`` there, and subscriptions' records as ``records/<name>/<number>.json``. Everything else
is in the state folder of a machine. See :mod:`pgsluice.spool.records.objects`.

Numbers in names have leading zeros, so that names sort like the numbers. They are hexadecimal,
except a part's number. Files with other names do not belong to the spool: pgsluice neither reads
nor deletes them. A file has the suffix ``.tmp`` while it is written; nothing reads it then.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.small_files import TEMPORARY
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.spool_place import SpoolPlace

IDENTITY = "identity.json"
START = "start.json"
FRONTIER = "frontier.json"
COMMITS = "commits.json"
EPOCH = "epoch.json"
RELEASED = "released.json"
WRITER_LOCK = "writer.lock"
CAPTURE_HEALTH = "capture.json"
ALERTS = "alerts.json"
ALERTS_LOCK = "alerts.lock"
SPARK_LOG = "spark.log"
FILES = (
    START,
    FRONTIER,
    COMMITS,
    EPOCH,
    RELEASED,
    CAPTURE_HEALTH,
    ALERTS,
    ALERTS_LOCK,
    WRITER_LOCK,
    SPARK_LOG,
    IDENTITY,
)
"""The identity is deleted last: a folder without it is not recognised as a spool."""

SEGMENTS, PARTS, PREPARED, SUBSCRIPTIONS = "segments", "parts", "prepared", "subscriptions"
RECORDS, STAGING, REJECTS, ACTIVE_RUNS = "records", "staging", "rejects", "runs"
"""In an object store: the subscriptions' records, what tasks of a batch exchange, their rejects,
and the machines that run subscriptions."""
FOLDERS = (SEGMENTS, PARTS, PREPARED, SUBSCRIPTIONS)

SUBSCRIPTION_LOCK, RECORD = "lock", "record.json"
REGISTERED = ("registered", "checkpoint")
"""Files that prove that the subscription once had a record; earlier versions created the second
one."""
BARRIER, BARRIER_LOCK, BARRIER_ANSWER = "barrier.json", "barrier.lock", "barrier.answer.json"
COPY_SNAPSHOT, COPY_JOURNAL, COPY_STATUS = "copies.snapshot", "copies.journal", "copies.json"
"""The first two belong to the first copy run: see :func:`copy_files`."""
RUN_SETTINGS, CATALOG_PROBLEMS, VERIFIED = "settings.json", "catalog.json", "verified.json"
LEFTOVERS = "leftovers.json"
SNAPSHOT_ROWS, SNAPSHOT_ATTEMPT, SNAPSHOT_COMPLETE = "snapshot", "attempt.json", "complete.json"

_LSN = "([0-7][0-9A-F]{15})"
_SEGMENT = re.compile(rf"\A{_LSN}-{_LSN}-([0-9A-F]{{8}})(\.ref)?\.arrow\Z")
_PART = re.compile(r"\A([0-9A-F]{8})-([0-9A-Za-z-]+)-([0-9]{6,})\.arrow\Z")
_PREPARED = re.compile(rf"\A{_LSN}-([0-9A-F]{{8}})\.arrow\Z")
_SUBSCRIPTION = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


def copy_files(round_number: int) -> tuple[str, str]:
    """The names of a long copy run's files: its snapshot, and its journal. A subscription can have
    several copy runs at a time, numbered from 0."""
    if round_number == 0:
        return COPY_SNAPSHOT, COPY_JOURNAL
    return f"copies.{round_number}.snapshot", f"copies.{round_number}.journal"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The name of a segment, or of a reference to the parts of one transaction."""

    folder: ClassVar[str] = SEGMENTS
    start: Lsn
    end: Lsn
    epoch: int
    is_reference: bool = False

    def __str__(self) -> str:
        suffix = ".ref.arrow" if self.is_reference else ".arrow"
        return f"{int(self.end):016X}-{int(self.start):016X}-{self.epoch:08X}{suffix}"

    @classmethod
    def parse(cls, base: str) -> SegmentName | None:
        """Parse a name without its folders; None if it is not a segment's."""
        match = _SEGMENT.match(base)
        if match is None:
            return None
        end, start, epoch = (int(match[group], 16) for group in (1, 2, 3))
        return cls(Lsn(start), Lsn(end), epoch, match[4] is not None)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a part of one transaction.

    Attributes:
        transaction: the transaction's key: letters, digits and ``-``.
        number: the number of the part among all parts of its writer.
    """

    folder: ClassVar[str] = PARTS
    epoch: int
    transaction: str
    number: int

    def __str__(self) -> str:
        return f"{self.epoch:08X}-{self.transaction}-{self.number:06d}.arrow"

    @classmethod
    def parse(cls, base: str) -> PartName | None:
        """Parse a name without its folders; None if it is not a part's."""
        match = _PART.match(base)
        return None if match is None else cls(int(match[1], 16), match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class PreparedName:
    """The name of a prepared transaction's file."""

    folder: ClassVar[str] = PREPARED
    prepare_lsn: Lsn
    xid: int

    def __str__(self) -> str:
        return f"{int(self.prepare_lsn):016X}-{self.xid:08X}.arrow"

    @classmethod
    def parse(cls, base: str) -> PreparedName | None:
        """Parse a name without its folders; None if it is not a prepared transaction's."""
        match = _PREPARED.match(base)
        return None if match is None else cls(Lsn(int(match[1], 16)), int(match[2], 16))


def new_object(name: SegmentName | PartName | PreparedName, shard: str) -> str:
    """The name, with its folders, for a new file. ``shard``: the subfolder for files that are
    written now."""
    return f"{name.folder}/{shard}/{name}"


def spool_of(path: Path) -> Path:
    """The spool's folder that contains the file of a segment, part or prepared transaction; raises
    SpoolError if none does."""
    file = path.resolve()
    if len(file.parents) < 3 or file.parents[1].name not in (SEGMENTS, PARTS, PREPARED):
        raise SpoolError(
            f"the file {path} is not in a spool: its path does not have the form "
            f"<spool>/{SEGMENTS}/<hour>/<name>",
            hint="give the path that the file has inside its spool",
            path=str(path),
        )
    return file.parents[2]


def subscription_folder(machine_folder: Path, name: str) -> Path:
    """The folder of a subscription's lock, command files and staged changes, below the spool's
    folder or the state folder of a spool in an object store; on a disk, also of its record. Raises
    SpoolError if the name cannot be a subscription's."""
    return machine_folder / SUBSCRIPTIONS / checked_name(name)


def tasks_path(place: SpoolPlace, name: str, kind: str) -> str:
    """The folder for files that tasks of a subscription write, below the spool: its path, or in a
    store its name. ``kind``: STAGING for what the tasks of a batch exchange, REJECTS for rejects
    that are not in the rejects table yet."""
    if place.is_remote:
        return f"{kind}/{checked_name(name)}"
    return str(subscription_folder(place.folder, name) / kind)


def checked_name(name: str) -> str:
    """A subscription's name, which becomes a part of paths; raises SpoolError for any other
    text."""
    if not _SUBSCRIPTION.match(name):
        raise SpoolError(f"{name!r} cannot name a subscription: letters, digits, _ . - only")
    return name


def record_path(spool_path: Path, name: str) -> Path:
    """The file of a subscription's record; raises as :func:`subscription_folder`."""
    return subscription_folder(spool_path, name) / RECORD


def subscription_names(place: SpoolPlace | Path) -> list[str]:
    """The names of the subscriptions that have a record in the spool, sorted."""
    place = SpoolPlace.of(place)
    if place.is_remote:
        stored = folder_of(place).tree(f"{RECORDS}/")
        return sorted({each.name.split("/")[1] for each in stored})
    records = place.folder.glob(f"{SUBSCRIPTIONS}/*/{RECORD}")
    return sorted(path.parent.name for path in records)


def forget_subscription(place: SpoolPlace, name: str) -> None:
    """Delete a subscription's files; raises as :func:`subscription_folder`. The caller holds the
    subscription's lock."""
    folder = subscription_folder(place.folder, name)
    if place.is_remote:
        for kind in (STAGING, REJECTS, RECORDS):
            _delete_tree(place, f"{kind}/{name}/")
        folder_of(place).delete(f"{ACTIVE_RUNS}/{name}.json")
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / REGISTERED[0]).unlink(missing_ok=True)  # with it, a reader misses the record
        shutil.rmtree(folder)


def _delete_tree(place: SpoolPlace, under: str) -> bool:
    folder = folder_of(place)
    names = [stored.name for stored in folder.tree(under)]
    folder.delete(*names)
    return bool(names)


def forget_spool(place: SpoolPlace | Path) -> bool:
    """Delete a spool's files, and its folder if nothing else is in it; True if there was any file.

    If it is interrupted, call it again to delete the rest. The caller holds the writer's lock.
    """
    place, had_files = SpoolPlace.of(place), False
    if place.is_remote:
        for kind in (STAGING, REJECTS, SEGMENTS, PARTS, PREPARED, RECORDS, ACTIVE_RUNS):
            had_files |= _delete_tree(place, f"{kind}/")
        folder = folder_of(place)
        for name in FILES:
            had_files |= folder.stat(name) is not None
            folder.delete(name)
    patterns = [*FOLDERS, f"{SPARK_LOG}.*"]
    for name in FILES:
        patterns += [f"{name}.*{TEMPORARY}", f"{name}{TEMPORARY}", name]
    paths = [path for pattern in patterns for path in sorted(place.folder.glob(pattern))]
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if place.folder.is_dir() and not any(place.folder.iterdir()):
        place.folder.rmdir()
    return bool(paths) or had_files
