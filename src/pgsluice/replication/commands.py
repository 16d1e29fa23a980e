"""A connection to a walsender for commands: one at a time, each as a simple query.

It uses libpq's ``pq`` layer with its own poll loop, so that a wait can end by a timeout or a
request to stop. Refusals of the server and broken connections become errors of pgsluice here.
Source: the manual, section "Streaming Replication Protocol".
"""

from __future__ import annotations

import logging
import math
import re
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgsluice.config.values.dsn import join_conninfo, split_conninfo
from pgsluice.errors import PgsluiceError, SlotLost, SourceRefused, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication.options import quote_identifier
from pgsluice.replication.refusals import (
    no_answer,
    odd_answer,
    only_row,
    refused_command,
    refused_result,
    rows_of,
    source_errors,
    status_name,
)
from pgsluice.replication.session import connect_sql, open_session, settings_command
from pgsluice.replication.slots import CreatedSlot, name_blockers
from pgsluice.replication.timeline import TimelineSwitch, parse_history

logger = logging.getLogger(__name__)

_SILENCE_S = 60.0
_POLL_MS = 200
_NAME_BLOCKERS_EVERY_S = 5.0
_COMMAND_ENDS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM.

    Attributes:
        system_id: the cluster's identifier, which its standbys share.
    """

    system_id: str
    timeline: int
    dbname: str


class Walsender:
    """A connection to a walsender; a context manager. Created by :meth:`connect`."""

    def __init__(
        self, connection: psycopg.Connection[Any], dsn: str, silence_s: float | None
    ) -> None:
        self._connection = connection
        self._dsn = dsn
        self._silence_s = math.inf if silence_s is None else silence_s
        #: libpq's connection, for the hot loop.
        self.pgconn: pq.abc.PGconn = connection.pgconn

    @classmethod
    def connect(
        cls,
        dsn: str,
        timeout_s: float = 30,
        *,
        application: str = "capture",
        silence_s: float | None = _SILENCE_S,
    ) -> Self:
        """Connect as a walsender of the dsn's database; arguments and errors are those of
        :func:`pgsluice.replication.connect_sql`.

        Args:
            silence_s: how long to wait for the answer to a short command, in seconds; None: no
                limit.
        """
        connection = open_session(
            dsn, timeout_s=timeout_s, application=application, replication="database"
        )
        walsender = cls(connection, dsn, silence_s)
        try:
            walsender._ask(settings_command(walsender.server_version), "setting up the session")
        except BaseException:
            walsender.close()
            raise
        return walsender

    @property
    def server_version(self) -> int:
        """The version in libpq's form: 180004, 100023."""
        return self.pgconn.server_version

    @property
    def application(self) -> str:
        """The session's application_name on the server."""
        return (self.pgconn.parameter_status(b"application_name") or b"").decode()

    @property
    def server_dsn(self) -> str:
        """The dsn with only the server that answered: a dsn may name several hosts, and the state
        of a slot on one server is not valid for another."""
        info = self._connection.info
        dsn, command = split_conninfo(self._dsn)
        one = make_conninfo(dsn, host=info.host, hostaddr=info.hostaddr, port=info.port)
        return join_conninfo(one, command)

    def close(self) -> None:
        """Close the socket, even while a command runs."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(
        self,
        text: str,
        *,
        doing: str | None = None,
        timeout_s: float = _SILENCE_S,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, str | None]]:
        """Run a replication command or SQL as a simple query.

        Args:
            is_stopping: called a few times a second; True ends the wait.

        Returns:
            the rows of the last statement, values as text.

        Raises:
            TimeoutError: the time is over, or ``is_stopping`` returned True; the command still
                runs.
            SourceRefused, SourceUnreachable: the server refused, or the connection broke.
            ProtocolError: the answer is not one to a command; the connection is closed.
        """
        doing = doing or text.partition(" ")[0]
        self._send_query(text, doing)
        rows: list[dict[str, str | None]] = []
        failure: PgsluiceError | None = None
        deadline = time.monotonic() + timeout_s
        while (result := self._get_result(doing, deadline, is_stopping)) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failure = refused_result(doing, result)
            elif result.status not in _COMMAND_ENDS:
                # A COPY would never end: libpq gives its result again and again.
                self.close()
                raise odd_answer(doing, f"the server answered with {status_name(result)}")
            rows = rows_of(result)
        if failure is not None:
            raise failure
        return rows

    def _ask(self, text: str, doing: str) -> list[dict[str, str | None]]:
        """Run a command that the server answers at once; without an answer, the connection is
        closed."""
        try:
            return self.command(text, doing=doing, timeout_s=self._silence_s)
        except TimeoutError:
            self.close()
            raise no_answer(doing, self._silence_s) from None

    def identify_system(self) -> SystemIdentity:
        """IDENTIFY_SYSTEM; raises ProtocolError if the answer is not one complete row."""
        doing = "IDENTIFY_SYSTEM"
        row = only_row(doing, self._ask(doing, doing), "systemid", "timeline", "dbname")
        if not re.fullmatch(r"[0-9]{1,20}", row["systemid"], re.ASCII):
            raise odd_answer(doing, "the system identifier is not a number")
        if not re.fullmatch(r"[1-9][0-9]{0,9}", row["timeline"], re.ASCII):
            raise odd_answer(doing, "the timeline is not a number")
        return SystemIdentity(row["systemid"], int(row["timeline"]), row["dbname"])

    def timeline_history(self, timeline: int) -> tuple[TimelineSwitch, ...]:
        """TIMELINE_HISTORY: the timelines before this one, oldest first; the first has none.

        Raises:
            SourceRefused: the server does not have that timeline's history.
            ProtocolError: the history cannot be read.
        """
        if timeline == 1:
            return ()
        doing = f"reading the history of timeline {timeline}"
        try:
            rows = self._ask(f"TIMELINE_HISTORY {timeline}", doing)
        except SlotLost as error:  # a missing file, which mostly means a slot's WAL
            raise SourceRefused(
                error.what,
                hint=f"{timeline:08X}.history is gone from the server's pg_wal: put it back from "
                "the WAL archive",
                timeline=timeline,
            ) from None
        return parse_history(only_row(doing, rows, "content")["content"], timeline)

    def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        export_snapshot: bool = False,
        two_phase: bool = False,
        failover: bool = False,
        timeout_s: float = 300,
        is_stopping: Callable[[], bool] = lambda: False,
        name_blockers_to: Callable[[list[str]], None] = lambda blockers: None,
    ) -> CreatedSlot:
        """CREATE_REPLICATION_SLOT for pgoutput.

        An exported snapshot can be imported until the next command on this connection; sessions
        that imported it keep it. The server waits for all open writing transactions, which can take
        minutes. After a few seconds, these transactions are logged.

        Args:
            name_blockers_to: called every few seconds with the transactions that are waited for.

        Raises:
            SourceRefused: wal_level is too low, no slot is free, the name is taken, a privilege is
                missing, the server is too old for two_phase or failover, or it waited for open
                transactions longer than ``timeout_s`` (the fact ``blockers`` names them).
            PgsluiceError: ``is_stopping`` returned True; no slot is left behind.
            ProtocolError: the answer lacks the slot's consistent point.
        """
        major = self.server_version // 10000
        if two_phase and major < 15:
            raise SourceRefused("two_phase needs PostgreSQL 15 or newer on the source")
        if failover and major < 17:
            raise SourceRefused("a failover slot needs PostgreSQL 17 or newer on the source")
        text = f"CREATE_REPLICATION_SLOT {quote_identifier(name)}"
        text += f"{' TEMPORARY' if temporary else ''} LOGICAL pgoutput"
        if major < 15:
            text += f" {'' if export_snapshot else 'NO'}EXPORT_SNAPSHOT"
        else:
            options = f"{', TWO_PHASE' if two_phase else ''}{', FAILOVER' if failover else ''}"
            text += f" (SNAPSHOT '{'export' if export_snapshot else 'nothing'}'{options})"
        # Names of temporary slots are random: messages that come again would differ by them.
        doing = "creating a temporary slot" if temporary else f"creating slot {name!r}"
        named_at, level = time.monotonic(), logging.WARNING

        def name_and_ask() -> bool:
            nonlocal named_at, level
            if time.monotonic() >= named_at + _NAME_BLOCKERS_EVERY_S:
                with suppress(
                    PgsluiceError
                ):  # the command itself fails if the server has a problem
                    if blockers := self._blockers():
                        logger.log(level, "%s waits for the end of: %s", doing, "; ".join(blockers))
                        level = logging.DEBUG  # a warning is logged once
                        name_blockers_to(blockers)
                named_at = time.monotonic()
            return is_stopping()

        try:
            rows = self.command(text, doing=doing, timeout_s=timeout_s, is_stopping=name_and_ask)
        except TimeoutError:
            if is_stopping():
                self._cancel(doing)
                raise PgsluiceError(f"{doing}: asked to stop") from None
            blockers = self._blockers()
            self._cancel(doing)
            transactions = "; ".join(blockers) or "none is open any more"
            raise SourceRefused(
                f"{doing} did not end within {timeout_s:g} s: the server waits for the end of "
                f"every open writing transaction: {transactions}",
                hint="end these transactions (COMMIT, ROLLBACK PREPARED, or SELECT "
                "pg_terminate_backend(pid)), and start pgsluice again",
                slot=name,
                blockers=tuple(blockers),
            ) from None
        names = ("consistent_point", *(("snapshot_name",) if export_snapshot else ()))
        row = only_row(doing, rows, *names)
        try:
            consistent_point = Lsn.parse(row["consistent_point"])
        except ValueError:
            raise odd_answer(doing, "its consistent point is not an LSN") from None
        return CreatedSlot(name, consistent_point, row.get("snapshot_name"))

    def _blockers(self) -> list[str]:
        with (
            connect_sql(self.server_dsn, application="blockers") as second,
            source_errors("asking for open transactions"),
        ):
            return name_blockers(second)

    def drop_slot(self, name: str, *, wait: bool = False, timeout_s: float = 60) -> None:
        """DROP_REPLICATION_SLOT; ``wait``: wait until no other process uses it.

        Raises:
            SlotLost: the slot does not exist.
            SlotInUse: the slot is active, and ``wait`` is false or ``timeout_s`` is over.
        """
        text = f"DROP_REPLICATION_SLOT {quote_identifier(name)}{' WAIT' if wait else ''}"
        doing = f"dropping slot {name!r}"
        try:
            self.command(text, doing=doing, timeout_s=timeout_s)
        except TimeoutError:
            self._cancel(doing)
            raise refused_command(
                doing, "55006", f"still active after {timeout_s:g} s", ""
            ) from None

    def _send_query(self, text: str, doing: str) -> None:
        try:
            self.pgconn.send_query(text.encode())
        except psycopg.OperationalError as error:
            raise self._broken(doing, error) from None

    def _get_result(
        self, doing: str, deadline: float, is_stopping: Callable[[], bool] = lambda: False
    ) -> pq.abc.PGresult | None:
        """The next result of the running command; None: complete. TimeoutError also if results keep
        coming."""
        poll = select.poll()
        if time.monotonic() > deadline:
            raise TimeoutError
        try:
            while True:
                wants_write = self.pgconn.flush() == 1
                if not wants_write and not self.pgconn.is_busy():
                    return self.pgconn.get_result()
                poll.register(
                    self.pgconn.socket, select.POLLIN | (select.POLLOUT if wants_write else 0)
                )
                while not poll.poll(_POLL_MS):
                    if time.monotonic() > deadline or is_stopping():
                        raise TimeoutError
                self.pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._broken(doing, error) from None

    def _cancel(self, doing: str) -> None:
        """Cancel the running command and wait for its end."""
        self._connection.cancel_safe(timeout=10)
        deadline = time.monotonic() + 10
        try:
            while self._get_result(doing, deadline) is not None:
                pass
        except TimeoutError:
            self.close()

    def _broken(self, doing: str, error: psycopg.OperationalError) -> PgsluiceError:
        """The error for a broken connection: the server's last message, if it sent one."""
        result = None
        if self.pgconn.status == pq.ConnStatus.BAD:
            result = self.pgconn.get_result()
        if result is not None and result.error_field(pq.DiagnosticField.SQLSTATE) is not None:
            return refused_result(doing, result)
        reason = str(error).strip().partition("\n")[0]
        return SourceUnreachable(f"{doing}: {reason}")
