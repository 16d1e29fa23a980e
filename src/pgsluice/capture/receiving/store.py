"""The thread that makes received data durable, while the receiver continues.

Joining, scanning and fsync release the interpreter's lock. The thread executes commands in order:
calls of the spool's writer, each durable before the next one starts. The first error stops it and
is raised in the receiver. Between commands it deletes segments that nobody needs
(:mod:`pgsluice.spool.segments.retention`).

Its figure: capture into the durable spool, at least 1.5 times the rate of pg_recvlogical.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeAlias

from pgsluice.errors import PgsluiceError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolWriter
from pgsluice.spool.segments.parts_writer import PartsWriter
from pgsluice.spool.segments.retention import Retention, RetentionState

_DEPTH = 2
_WAKES_S = 1.0
_RETENTION_COMMANDS = 4
"""Where it costs little, retention also runs after this many commands."""
P = ParamSpec("P")
Command: TypeAlias = Callable[[SpoolWriter], object]
"""Called on the store's thread."""


def to_parts(
    method: Callable[Concatenate[PartsWriter, P], object], *args: P.args, **kwargs: P.kwargs
) -> Command:
    """A command that calls a method of the writer of transactions in parts."""
    return lambda writer: method(writer.parts, *args, **kwargs)


class Store:
    """Makes commands durable in its own thread; a context manager.

    Args:
        retention: deletes segments that nobody needs; None: delete nothing.

    Attributes:
        durable: the durable received-through LSN, which may be acknowledged.
        submitted, done: the numbers of the last command that was handed over, and that is durable.
        retained: the last result of retention; None before its first step.
        guard: called before a command is accepted; raises if the command must not be stored.
    """

    def __init__(self, writer: SpoolWriter, retention: Retention | None) -> None:
        self._writer = writer
        self._retention = retention
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self.submitted = 0
        self.done = 0
        self._error: PgsluiceError | None = None
        self.durable = writer.frontier
        self.retained: RetentionState | None = None
        self.guard: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="pgsluice store", daemon=True)

    def __enter__(self) -> Store:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def is_full(self) -> bool:
        """Whether the spool has no room for more."""
        return self.retained is not None and self.retained.is_full

    def raise_error(self) -> None:
        """Raise the error that stopped the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def offer(self, command: Command, timeout_s: float) -> bool:
        """Hand over a command.

        Returns:
            False if the queue was full: handle the connection, and try again.

        Raises:
            PgsluiceError: the error that stopped the thread, or an error of the guard.
        """
        if self.guard is not None:
            self.guard()
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._commands) < _DEPTH or self._error is not None, timeout_s
            )
            self.raise_error()
            if len(self._commands) >= _DEPTH:
                return False
            self._commands.append(command)
            self.submitted += 1
            self._changed.notify_all()
            return True

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was handed over is durable; False if that took too long.
        Raises the error that stopped the thread."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.done == self.submitted or self._error is not None, timeout_s
            )
            self.raise_error()
            return done

    def settled_writer(self) -> SpoolWriter:
        """The spool's writer, once everything that was handed over is durable; the caller may use
        it until the next command. Raises the error that stopped the thread."""
        self.drain()
        return self._writer

    def lower_frontier(self, lsn: Lsn) -> None:
        """Lower the received-through LSN because the source has another history past ``lsn``;
        between connections only."""
        self.settled_writer().lower_frontier(lsn)
        self.durable = self._writer.frontier

    def _run(self) -> None:
        retention, commands = self._retention, 0
        due_at = time.monotonic()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._commands or self._is_closing, timeout=_WAKES_S
                    )
                    command = self._commands[0] if self._commands else None
                    if command is None and self._is_closing:
                        return
                if command is not None:
                    command(self._writer)
                    commands += 1
                    with self._changed:
                        self._commands.popleft()
                        self.done += 1
                        self.durable = self._writer.frontier
                        self._changed.notify_all()
                if retention is None:
                    continue
                is_often = commands >= _RETENTION_COMMANDS and retention.pause_s <= _WAKES_S
                if is_often or time.monotonic() >= due_at:
                    self.retained = retention.step()
                    due_at, commands = time.monotonic() + retention.pause_s, 0
        except PgsluiceError as error:
            self._stop(error)
        except OSError as error:
            self._stop(SpoolError(f"the spool cannot be written: {error}"))
        except BaseException as error:
            self._stop(SpoolError(f"the spool's writer failed: {error!r}"))
            raise

    def _stop(self, error: PgsluiceError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
