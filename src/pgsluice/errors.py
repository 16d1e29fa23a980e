"""The errors that pgsluice raises on purpose: one tree, which other rooms extend.

An error says what happened, where, and what to do next (``hint``). Facts are attributes, so
that callers decide by them and never by parsing a sentence. It never carries a row's values
or a password. A name in it may be anything, so its sentence is one line of characters that can
be seen. All of them pickle: they cross from Spark's Python workers to the driver.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Self

from pgsluice.disk import disk_trouble
from pgsluice.shown import one_line, shown
from pgsluice.system.machine import naming_machine


class ExitCode(IntEnum):
    """How a command ended; ``docs/exit-codes.md`` lists what each command means by it."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    SOURCE = 3
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


class Remedy(StrEnum):
    """The recovery action of a subscription for an error of one of its tables."""

    PARK = "park"
    """The table pauses until a user requests a new copy."""
    COPY = "copy"
    """The subscription copies the table again at once: the stream lacks what it needs."""
    RETRY = "retry"
    """The subscription retries the work, and parks the table after several failures in a row."""
    LOOK = "look"
    """The subscription refreshes the catalog, then retries the work."""
    WAIT = "wait"
    """The subscription retries until it succeeds: the cause is outside the table."""
    LATER = "later"
    """The subscription cancels a copy, and restarts it once the obstacle is gone."""
    STOP = "stop"
    """The whole subscription stops: its target cannot be used."""


class ParkReason(StrEnum):
    """Reasons of parked tables whose end a catalog refresh can detect."""

    KEY = "key"
    """Updates and deletes of the table do not identify their row."""
    COLUMNS = "columns"
    """The target table cannot have the columns of the source table."""
    RIGHTS = "rights"
    """The role lacks the privilege to read the table, or row security hides rows from it."""
    REWRITTEN = "rewritten"
    """Each attempt to copy the table failed, because it was rewritten, recreated or renamed
    meanwhile."""


class PgsluiceError(Exception):
    """Base of all errors.

    Args:
        what: what happened, one sentence.
        details: lines that follow it.
        hint: what to do next, one sentence or a few lines; None when there is nothing to do.
        remedy: the recovery action, if it differs from that of the error's class.
        facts: where it happened (``lsn``, ``tag``, ``offset``, ``table``, ``column`` ...).
    """

    exit_code = ExitCode.FAILED
    remedy = Remedy.RETRY
    is_lasting = False
    """The same work would fail again: something that it needs no longer exists."""

    def __init__(
        self,
        what: str,
        *,
        details: Sequence[str] = (),
        hint: str | None = None,
        remedy: Remedy | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(what)
        self.what = shown(what)
        self.details = tuple(map(shown, details))
        self.hint = hint
        self.facts = facts
        if remedy is not None:
            self.remedy = remedy

    @classmethod
    def of_text(cls, text: str, **more: Any) -> Self:
        """Make an error from the text of another one, with its details and its hint."""
        what, *lines = text.split("\n")
        is_indented = all(line.startswith("  ") for line in lines)
        return cls(what, details=[line[2:] for line in lines] if is_indented else lines, **more)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __str__(self) -> str:
        lines = [self.what, *(f"  {line}" for line in self.details)]
        if self.hint is not None:
            first, *others = self.hint.split("\n")
            lines += [f"  → {first}", *(f"    {line}" for line in others)]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        more = {"details": self.details, "hint": self.hint, "remedy": self.remedy}
        return _rebuild, (type(self), self.what, {**self.facts, **more})


def _rebuild(kind: type[PgsluiceError], what: str, more: dict[str, Any]) -> PgsluiceError:
    return kind(what, **more)


class ConfigError(PgsluiceError):
    """The command line, the configuration or the environment (Java) is wrong."""

    exit_code = ExitCode.USAGE


class ProtocolError(PgsluiceError):
    """The server sent bytes that violate the protocol; facts: ``tag``, ``offset``, ``lsn``."""


class ConversionError(PgsluiceError):
    """A value is not of its type's text or binary form; facts: ``type_name``, ``row``."""


class SourceUnreachable(PgsluiceError):
    """No connection to the server could be made, or it broke."""

    remedy = Remedy.WAIT


class SourceRefused(PgsluiceError):
    """The server refuses pgsluice, or lacks what it needs: password, wal_level, slot, privilege."""

    exit_code = ExitCode.SOURCE


class SlotInUse(SourceRefused):
    """The slot is active for another process."""


class SlotLost(SourceRefused):
    """The slot is missing after the first run, or the server removed WAL that it needs."""


class PublicationMissing(SourceRefused):
    """A publication that replication needs does not exist; it may come back."""


class Gap(SourceRefused):
    """The slot's confirmed_flush_lsn is past what the spool received: changes are missing."""


class ForeignSource(SourceRefused):
    """The server, database or slot is not the one that the spool belongs to."""


class SpoolError(PgsluiceError):
    """The spool cannot be read or written; fact: ``path``.

    The user has to restore a file that cannot be read. Until then, the tables that need it wait.
    """

    remedy = Remedy.WAIT


class SpoolFull(SpoolError):
    """No room is left on the spool's disk."""


class SpoolHole(SpoolError):
    """The chain of segments is broken, or a segment cannot be read."""


class SpoolBusy(SpoolError):
    """Another process is the spool's writer."""


class SpoolTaken(SpoolError):
    """Another process has become the writer of a spool in an object store, or of a record in it."""


class ForeignSpool(SpoolError):
    """The folder holds a spool of another source, or of a format that we cannot read."""

    exit_code = ExitCode.SOURCE


class TableError(PgsluiceError):
    """Only one table is affected: pgsluice parks it, and other tables continue; fact: ``table``.

    With the fact ``reason``, a :class:`ParkReason`, pgsluice resumes the table once the reason has
    ended. With the fact ``leaves``, it retries at once, with the bounds of these partitions.
    """

    remedy = Remedy.PARK


class ForeignTarget(TableError):
    """The target has rows that pgsluice wrote from another spool, or for another table; fact:
    ``location``. Only a copy that a user asks for may replace them."""


class EvaluationError(TableError):
    """A row filter fails for a row, as it would on the server, or only the server can tell.

    Facts: ``condition``, the name of PostgreSQL's SQLSTATE (``division_by_zero``), or
    ``cannot_know``; ``message``, PostgreSQL's own; ``row``, the index of the first such row.
    """


class SinkError(PgsluiceError):
    """The target as a whole cannot be used."""

    remedy = Remedy.STOP


class TargetUnreachable(PgsluiceError):
    """The store of a target does not respond, is full, or temporarily refuses pgsluice."""

    remedy = Remedy.WAIT


class SparkFailed(PgsluiceError):
    """Spark failed without a reason: its JVM was killed or crashed, or a job lost its workers. The
    same work may succeed in a new session."""


class TablesUnfinished(PgsluiceError):
    """``run --once`` has ended, but tables are parked or behind the position to reach; fact:
    ``tables``, each with its subscription's name and its OID."""


_FACTS_OF_FAILURES = ("reason", "leaves", "partitions", "reached")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a task reports it to the subscription's driver.

    Attributes:
        remedy: what the subscription does about it.
        message: the error as text.
        reason: why the table is parked, if a catalog refresh can detect its end.
        details: a traceback for the log, where the error was not expected; None otherwise.
        is_of_target: the target's store failed, so the table waits for it.
        is_lasting: see :class:`PgsluiceError`.
        leaves: the partitions whose bounds the task needs before it can continue.
        partitions: the partitions whose changes cannot be applied to the target; empty: all of the
            table.
        reached: the target's LSN after another writer has overwritten later commits of pgsluice.
    """

    remedy: Remedy
    message: str
    details: str | None = None
    reason: str | None = None
    is_of_target: bool = False
    leaves: frozenset[int] = frozenset()
    is_lasting: bool = False
    partitions: frozenset[int] = frozenset()
    reached: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The failure of a table whose task raised this exception.

        Errors of disks and networks lead to waiting; a missing file does not. Unknown errors of
        other libraries lead to another attempt.
        """
        if isinstance(error, PgsluiceError):
            is_of_target = isinstance(error, TargetUnreachable)
            message = str(error) if isinstance(error, TableError) else naming_machine(str(error))
            facts = {name: each for name, each in error.facts.items() if name in _FACTS_OF_FAILURES}
            lasts = error.is_lasting
            return cls(error.remedy, message, is_of_target=is_of_target, is_lasting=lasts, **facts)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            trouble = disk_trouble(error)
            if trouble is not None:
                return cls.of(TargetUnreachable(trouble.what, hint=trouble.hint))
            message = f"{type(error).__name__}: {one_line(str(error))}"
            return cls(Remedy.WAIT, naming_machine(message), is_of_target=True)
        details = "".join(traceback.format_exception(error))
        message = naming_machine(f"{type(error).__name__}: {one_line(str(error))}")
        return cls(Remedy.RETRY, message, details)
