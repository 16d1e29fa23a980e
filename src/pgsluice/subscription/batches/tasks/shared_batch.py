"""Applies one table's large batch in several tasks, in four Spark jobs.

1. A task reads the target's position.
2. Each task reads some of the changes and slices them by bucket: all changes of a key are in one
   bucket. From their outlines, the driver decides which columns the target needs.
3. Each task nets and stages the changes of some buckets, piece by piece. If an update moves a row
   from one bucket to another, the same task gets both buckets.
4. One task commits everything that was staged.

Its figure: less than 1 GB in a worker for a transaction of 10 million rows.
"""

from __future__ import annotations

import pickle
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from pgsluice.changes.buckets import EVERY_BUCKET, linked, place
from pgsluice.changes.events import first_places
from pgsluice.changes.net import NetChanges
from pgsluice.changes.truncates import Place, Truncates
from pgsluice.columnar import RelationChanges
from pgsluice.disk import naming
from pgsluice.errors import Failure, PgsluiceError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import StagedChanges
from pgsluice.spark.jobs.lost_workers import again_in_stage
from pgsluice.spark.jobs.tasks import run_tasks, tasks_at_once
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.contract import Folder, NameTaken, Span, StoreError
from pgsluice.stores.places import folder_at
from pgsluice.stores.spool_place import SpoolPlace
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.tasks.apply import ApplyTables
from pgsluice.subscription.batches.tasks.large_batch import Outline
from pgsluice.subscription.batches.tasks.table_changes import Chunk
from pgsluice.subscription.batches.tasks.target_columns import TargetColumns, columns_of
from pgsluice.system.freed_memory import give_back_freed_memory

if TYPE_CHECKING:
    from pyspark import SparkContext

_UNDECIDED, _KEPT, _DELETED = "undecided", "kept", "deleted"
"""The suffix of a file that decides between committing and deleting the staged changes. The file
has the batch's own name, because an attempt of an earlier batch may still be running."""

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SlicedPiece:
    """A file with a piece of a table's changes, sliced by bucket, for other tasks of the batch.

    The file may be a pickle: it is in the subscription's folder of the spool, which only pgsluice's
    user can write.

    Attributes:
        slices: offset and length of each bucket's slice in the file, in bytes.
        links: pairs of buckets that have to be netted together.
    """

    folder: Folder
    name: str
    slices: Mapping[int, tuple[int, int]]
    links: frozenset[tuple[int, int]]

    @classmethod
    def write(
        cls, folder: Folder, runs: Iterable[RelationChanges], key: tuple[str, ...]
    ) -> SlicedPiece:
        """Slice a piece of changes by bucket, and write the slices."""
        by_bucket: dict[int, list[RelationChanges]] = {}
        links: set[tuple[int, int]] = set()
        for run in runs:
            placement = place(run, key)
            links |= placement.links
            order = np.argsort(placement.buckets, kind="stable")
            buckets, firsts = np.unique(placement.buckets[order], return_index=True)
            for bucket, chosen in zip(buckets.tolist(), np.split(order, firsts[1:]), strict=True):
                by_bucket.setdefault(bucket, []).append(run.take(chosen))
        slices: dict[int, tuple[int, int]] = {}
        name = f"{uuid.uuid4()}.changes"
        with naming(folder.path or folder.uri), folder.write(name) as file:
            for bucket, chosen_runs in by_bucket.items():
                begin = file.tell()
                pickle.dump(chosen_runs, file, pickle.HIGHEST_PROTOCOL)
                slices[bucket] = begin, file.tell() - begin
        if folder.path is None:
            folder.settle([name])
        return cls(folder, name, slices, frozenset(links))

    def size(self, buckets: Collection[int]) -> int:
        """The size of some buckets' slices, in bytes."""
        return sum(length for bucket, (_, length) in self.slices.items() if bucket in buckets)

    def read(self, buckets: Sequence[int]) -> list[RelationChanges]:
        """Read the changes of some buckets, including the changes that every bucket needs."""
        wanted = [bucket for bucket in (*buckets, EVERY_BUCKET) if bucket in self.slices]
        runs: list[RelationChanges] = []
        if wanted:
            spans = [Span(*self.slices[bucket]) for bucket in wanted]
            for data in self.folder.read_spans(self.name, spans):
                runs += pickle.loads(data)  # noqa: S301 - our own tasks wrote it
        return runs


@dataclass(frozen=True, slots=True)
class _Share:
    """The share of one task in staging: its buckets of the files of all changes, in commit order,
    for a target at the position ``after``."""

    after: Lsn
    columns: TargetColumns
    truncates: Truncates
    begins: Mapping[str, Place]
    pieces: tuple[SlicedPiece, ...]
    buckets: tuple[int, ...]


class _TaskFailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """One table's large batch that several tasks apply; picklable.

    Attributes:
        key: the table's key as of the last catalog refresh; empty: it has none.
        folder: the folder for this batch's files, which no other subscription uses.
    """

    task: ApplyTables
    work: TableWork
    key: tuple[str, ...]
    folder: Folder

    @classmethod
    def of(cls, task: ApplyTables, work: TableWork) -> SharedBatch | None:
        """The shared batch for this work; None if it is too small or its key is unknown."""
        is_large = work.size_bytes > task.large_bytes and not work.alter_facts
        if not is_large or task.staging_path is None or work.known is None:
            return None
        mode = task.options.mode
        if mode.log is not None or mode.history is not None:  # one task adds all rows, in order
            return None
        if work.known.key is None:
            return None
        folder = staging_folder(task.spool, task.staging_path)
        return cls(task, work, work.known.key, folder)

    def run(self, spark: SparkContext) -> TaskResult | Failure | None:
        """Apply the batch. None: nothing was done; the batch has to be applied in one task."""
        # What an earlier batch left that was killed; one batch at a time has the folder.
        clear(self.folder)
        try:
            return self._run(spark)
        except _TaskFailedError as failed:
            return failed.failure
        except PgsluiceError as error:
            return Failure.of(error)
        finally:
            clear(self.folder)

    def _run(self, spark: SparkContext) -> TaskResult | None:
        started = time.monotonic()
        [(after, done_before, schema, can_stage)] = _each(spark, self._begin, [self.work])
        if after >= self.work.through:
            return done_before
        if not can_stage:
            return None
        batch = uuid.uuid4().hex
        if (path := self.folder.path) is not None:
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{batch}.{_UNDECIDED}").touch()
        changes = self.task.changes(self.work)
        sliced = _each(spark, self._slice, changes.chunks(after, self.work.through))
        outline = Outline.joined([outline for outline, _ in sliced])
        if not outline.runs:
            return done_before
        if not self._has_one_key(outline) or outline.truncates.of_leaves:
            return None
        if not self.key and outline.has_old_rows:  # equal rows may be in several buckets
            return None
        columns = columns_of(self.work, outline.runs, schema, self.task.options)
        if columns.through is not None:
            return None
        decode_s = time.monotonic() - started
        if schema is None or columns.added or columns.widened:
            _each(spark, self._prepare, [(columns, after)])
        pieces = tuple(piece for _, pieces in sliced for piece in pieces)
        begins = first_places(outline.runs, columns.missing)
        shares = [
            _Share(after, columns, outline.truncates, begins, pieces, tuple(buckets))
            for buckets in _divided(pieces, tasks_at_once(spark))
        ]
        staged = self._staged(spark, shares)
        [done] = _each(spark, self.commit, [(batch, staged, outline)])
        return replace(
            done,
            decode_s=decode_s,
            merge_s=time.monotonic() - started - decode_s,
            doubt=columns.doubt,
            has_rejects=True,
        )

    def _staged(self, spark: SparkContext, shares: Sequence[_Share]) -> list[StagedChanges]:
        """Stage all shares. If a task fails, delete what others staged: a retry needs the room."""
        results = _attempts(spark, self._stage, shares)
        staged = [result for result in results if isinstance(result, StagedChanges)]
        if len(staged) < len(results):
            _attempts(spark, self._discard, [staged])
        return _all_of(results)

    def _has_one_key(self, outline: Outline) -> bool:
        """Whether equal keys are in one bucket: the key has the same types in all changes."""
        kinds = {
            tuple(str(run.schema.field(name).type) for name in self.key if name in run.schema.names)
            for run in outline.runs
        }
        return len(kinds) == 1 and len(next(iter(kinds))) == len(self.key)

    # What the tasks do.

    def _begin(self, work: TableWork) -> tuple[Lsn, TaskResult, pa.Schema | None, bool]:
        # The position after which the target lacks changes, the result if it lacks none, its
        # columns, and whether it can stage changes.
        writer, after, done_before = self.task.begin(work)
        return after, done_before, writer.schema(), writer.can_stage_changes()

    def _slice(self, chunk: Chunk) -> tuple[Outline, list[SlicedPiece]]:
        # The outline of the chunk's changes, and the files of their pieces, in commit order.
        changes = self.task.changes(self.work)
        pieces: list[SlicedPiece] = []
        outlines: list[Outline] = []
        for runs in changes.pieces(chunk):
            outlines.append(Outline.of(changes, runs))
            pieces.append(SlicedPiece.write(self.folder, runs, self.key))
        return Outline.joined(outlines), pieces

    def _prepare(self, wanted: tuple[TargetColumns, Lsn]) -> None:
        columns, after = wanted
        self.task.prepare(self.work, columns, after)

    def _stage(self, share: _Share) -> StagedChanges:
        writer, after, _ = self.task.begin(self.work)
        if after != share.after:
            raise PgsluiceError(
                f"another attempt has applied changes of table {self.work.title} meanwhile",
                hint="nothing to do: pgsluice retries the changes that the target still lacks",
            )
        staged = writer.stage_changes(self._net(share))  # which writes the rejects
        failpoint("batch.staged")
        return staged

    def _discard(self, staged: Sequence[StagedChanges]) -> None:
        writer, _, _ = self.task.begin(self.work)
        writer.discard_changes(staged)

    def _net(self, share: _Share) -> Iterator[NetChanges]:
        """The net changes of the share's buckets, in pieces that are joined from slices."""
        changes = self.task.changes(self.work, after=share.after)
        runs: list[RelationChanges] = []
        size = 0
        for piece in share.pieces:
            runs += piece.read(share.buckets)
            size += piece.size(share.buckets)
            if size > self.task.piece_bytes:
                yield from changes.nets(runs, share.columns, share.truncates, share.begins)
                runs, size = [], 0
                give_back_freed_memory()
        if runs:
            yield from changes.nets(runs, share.columns, share.truncates, share.begins)
        self.task.write_rejects(changes, share.after)

    def commit(self, wanted: tuple[str, Sequence[StagedChanges], Outline]) -> TaskResult:
        """Commit the staged changes. Spark may run this again while the first attempt still runs:
        only the first attempt may delete them, and then no later attempt commits them."""
        batch, staged, outline = wanted
        if again_in_stage() is not None and not self.claim_outcome(batch, _KEPT):
            raise PgsluiceError(
                f"table {self.work.title}: an attempt that failed has deleted the staged changes",
                hint="nothing to do: pgsluice retries the changes",
            )
        return self.task.commit(
            self.work, staged, outline, lambda: self.claim_outcome(batch, _DELETED)
        )

    def claim_outcome(self, batch: str, fate: str) -> bool:
        """Whether this attempt may commit or delete the staged changes: the first attempt of the
        batch that asks decides for all.

        On a disk, the decision is the name of a file, because renaming needs no room. In a store,
        it is the content of an object that only one attempt can create.
        """
        if (path := self.folder.path) is not None:
            with suppress(FileNotFoundError):
                (path / f"{batch}.{_UNDECIDED}").rename(path / f"{batch}.{fate}")
            return (path / f"{batch}.{fate}").exists()
        name = f"{batch}.fate"
        try:
            self.folder.create(name, f"{fate} {uuid.uuid4()}".encode())
        except NameTaken:
            return self.folder.read(name).startswith(fate.encode())
        return True


def staging_folder(spool: SpoolPlace | Path, path: str) -> Folder:
    """The folder for files that tasks of a batch exchange: on a disk, or in the spool's store."""
    spool = SpoolPlace.of(spool)
    return folder_of(spool, path) if spool.is_remote else folder_at(path)


def clear(folder: Folder) -> None:
    """Delete a folder's files, if that is possible now."""
    if folder.path is not None:
        shutil.rmtree(folder.path, ignore_errors=True)
        return
    with suppress(StoreError):
        folder.delete(*(stored.name for stored in folder.entries()))


def _divided(pieces: Sequence[SlicedPiece], tasks: int) -> list[list[int]]:
    """Divide buckets into groups of about the same size; linked buckets are in the same group."""
    groups: list[list[int]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks

    def size(buckets: Sequence[int]) -> int:
        return sum(piece.size(buckets) for piece in pieces)

    joined = linked(link for piece in pieces for link in piece.links)
    for buckets in sorted(joined, key=size, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest] += buckets
        sizes[smallest] += size(buckets)
    return [sorted(group) for group in groups if group]


def _each(spark: SparkContext, run: Callable[[W], R], works: Sequence[W]) -> list[R]:
    """The results of tasks, in the order of their work; raises if one failed."""
    return _all_of(_attempts(spark, run, works))


def _attempts(spark: SparkContext, run: Callable[[W], R], works: Sequence[W]) -> list[R | Failure]:
    """The results or failures of tasks, in the order of their work."""
    outcomes = run_tasks(spark, run, works, most_tasks=tasks_at_once(spark))
    return [result for _, result in outcomes]


def _all_of(results: Sequence[R | Failure]) -> list[R]:
    for result in results:
        if isinstance(result, Failure):
            raise _TaskFailedError(result)
    return [result for result in results if not isinstance(result, Failure)]
