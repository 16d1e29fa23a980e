"""Sessions on the source: how pgsluice connects, and the settings that make text output lossless.

The text of a value depends on the session: dates on ``datestyle``, floats on
``extra_float_digits``, ``regclass`` on ``search_path``. The stream and the copies must be the same,
so both use these settings: those of PostgreSQL's own subscriber (libpqwalreceiver.c,
``libpqrcv_connect``), and others that change the text. They are SET after connecting, so the user's
own ``options`` (dsn, service file, PGOPTIONS) stay in force.

Connection strings are libpq's: service files, .pgpass, PG* variables and TLS options work.
With ``password_command``, a program prints the password, such as a short-lived token of a cloud.
Each process calls it before its first connection, and again when the server refuses the password,
which it keeps in memory only. Neither the program's output nor its errors are logged: they may have
the password.
"""

from __future__ import annotations

import logging
import math
import subprocess
import threading
import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsluice.config.values.dsn import split_conninfo
from pgsluice.errors import ConfigError, SourceRefused, SourceUnreachable
from pgsluice.replication.refusals import refused_connection, source_errors
from pgsluice.shown import shown
from pgsluice.system.processes import Part, start

logger = logging.getLogger(__name__)

OLDEST_SERVER = 100000
SILENCE_S = 150.0
"""The default limit of a catalog statement, in seconds: longer than the server's own timeouts for
such statements."""
_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",  # of types' names and row filters
    "search_path": "",
    # A policy must make a statement fail, never hide rows from it.
    "row_security": "off",
}
# A server that went away without a word is noticed within a minute by a session that waits for it;
# with the system's defaults, after two hours.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
# The server must not end a session that keeps a snapshot, waits for a slot, or decodes a large
# transaction, nor one that does not receive for a while, as a full spool or a slow target has it:
# TCP's timeout ends that, too. Each setting with the first version that has it.
_TIMEOUTS_OFF = {
    "statement_timeout": 100000,
    "lock_timeout": 100000,
    "idle_in_transaction_session_timeout": 100000,
    "tcp_user_timeout": 120000,
    "idle_session_timeout": 140000,
    "transaction_timeout": 170000,
}
_PASSWORD_TIMEOUT_S = 30.0
_PASSWORDS: dict[str, str] = {}
"""Those of this process, by their commands."""
_LOCK = threading.Lock()


class SqlSession(psycopg.Connection[tuple[Any, ...]]):
    """A session that gives up a statement if the server does not answer.

    TCP keepalives detect a silently broken connection. But a pooler or a stopped server answers
    these, and would block its client for ever.

    Attributes:
        silence_s: the time limit of a statement, in seconds; None: no limit.
        doing: as of :func:`connect_sql`.
    """

    silence_s: float | None = None
    doing: str | None = None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Close the session without committing: its transactions only read, and a COMMIT could wait
        for a server that is gone."""
        self.close()
        if self.doing is not None and isinstance(error, psycopg.Error):
            with source_errors(self.doing):
                raise error

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step of libpq's protocol; called for every statement.

        Raises:
            psycopg.OperationalError: no answer in time; the session is closed.
        """
        limit_s = self.silence_s
        return super().wait(
            gen if limit_s is None else self._limited(gen, limit_s), *args, **kwargs
        )

    def _limited(self, gen: Generator[Any, Any, Any], limit_s: float) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + limit_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server did not answer within {limit_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def connect_sql(
    dsn: str,
    doing: str | None = None,
    *,
    timeout_s: float = 30,
    application: str = "catalog",
    silence_s: float | None = SILENCE_S,
) -> SqlSession:
    """Open a plain SQL session in autocommit mode, with the same settings as the stream's.

    ``search_path`` is empty: qualify names.

    Args:
        dsn: a libpq connection string or URI.
        doing: psycopg's errors that leave the session's block become pgsluice's, which start with
            this activity; None: wrap statements in :func:`pgsluice.replication.source_errors`.
        timeout_s: the timeout for each address in the dsn, in seconds.
        application: shown by the server as ``pgsluice <application>``, unless the dsn or PGAPPNAME
            has an application name.
        silence_s: the time limit of a statement, in seconds; None: no limit.

    Raises:
        ConfigError: the dsn is not a connection string.
        SourceUnreachable: no server answers, or it is starting or stopping.
        SourceRefused: the server refuses the connection, or is older than PostgreSQL 10.
    """
    connection = open_session(dsn, timeout_s=timeout_s, application=application)
    connection.silence_s, connection.doing = silence_s, doing
    try:
        with source_errors("setting up the session"):
            connection.execute(settings_command(connection.info.server_version).encode())
    except BaseException:
        connection.close()
        raise
    return connection


def open_session(dsn: str, *, timeout_s: float, application: str, **parameters: str) -> SqlSession:
    """Connect without the settings; raises the errors of :func:`connect_sql`."""
    dsn, command = split_conninfo(dsn)
    try:
        given: dict[str, Any] = conninfo_to_dict(dsn)
        if "service" not in given:  # its file may have them
            given = {**_KEEPALIVES, **given}
        conninfo = make_conninfo(
            make_conninfo(**given),
            connect_timeout=max(2, math.ceil(timeout_s)),
            client_encoding="UTF8",
            fallback_application_name=f"pgsluice {application}",
            **parameters,
        )
    except psycopg.ProgrammingError:
        # libpq's message may quote the dsn, and with it a password: leave it out.
        raise ConfigError(
            "the option dsn of the source is not a valid connection string",
            hint="write the dsn as postgresql://user@host:5432/database or host=… dbname=…",
        ) from None
    connection = _connect(conninfo) if command is None else _connect_with(conninfo, command)
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version
        connection.close()
        raise SourceRefused(
            f"the server is PostgreSQL {version // 10000}: logical replication needs 10 or newer"
        )
    return connection


def _connect(conninfo: str, refused: list[str] | None = None) -> SqlSession:
    """Connect once; ``refused`` gets the user if the server asked for a password and refused it."""
    try:
        # Prepared statements would need the same server session behind a pooler.
        return SqlSession.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        pgconn = error.pgconn  # of the attempt: with what the service file or PGUSER said
        user, dbname = (pgconn.user, pgconn.db) if pgconn is not None else (b"", b"")
        failure = refused_connection(str(error), user.decode(), dbname.decode())
        if refused is not None and pgconn is not None and pgconn.used_password:
            refused.append(user.decode())
        raise failure from None


def _connect_with(conninfo: str, command: str) -> SqlSession:
    """Connect with the password that a command prints; call it again if the server refuses it."""
    password = password_of(command)
    refused: list[str] = []
    try:
        return _connect(make_conninfo(conninfo, password=password), refused)
    except SourceRefused as error:
        if not refused:
            raise
        newer = password_of(command, refused=password)
        if newer == password:
            hint = "password_command was called again and printed the same password"
            raise SourceRefused(error.what, hint=hint, remedy=error.remedy) from None
    connection = _connect(make_conninfo(conninfo, password=newer))
    logger.warning(
        "the server refused the password of %s, and accepts the one that password_command prints "
        "now",
        shown(refused[0]),
    )
    return connection


def password_of(command: str, *, refused: str | None = None) -> str:
    """The password that a command prints.

    Args:
        refused: the one that the server refused; the command is called again, unless another thread
            has done so since.

    Raises:
        SourceUnreachable: the command failed. It may work later.
    """
    with _LOCK:
        known = _PASSWORDS.get(command)
        if known is None or known == refused:
            known = _PASSWORDS[command] = _called(command)
        return known


def _called(command: str) -> str:
    """The first line that a shell's command prints."""
    try:
        done = start(
            Part.PASSWORD_COMMAND,
            lambda: subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_PASSWORD_TIMEOUT_S,
                check=False,
            ),
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"did not end within {_PASSWORD_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise _failed(f"did not start: {error.strerror}") from None
    if done.returncode != 0:
        raise _failed(f"ended with exit code {done.returncode}")
    password = done.stdout.decode(errors="replace").partition("\n")[0].rstrip("\r")
    if not password:
        raise _failed("printed nothing")
    return password


def _failed(failure: str) -> SourceUnreachable:
    return SourceUnreachable(
        f"the program of password_command in [source] {failure}",
        hint="test the program as the user who runs pgsluice; pgsluice does not log its output, "
        "which may have the password",
    )


def settings_command(server_version: int) -> str:
    """The SET statements as one simple query."""
    off = [name for name, since in _TIMEOUTS_OFF.items() if server_version >= since]
    settings = {**_SETTINGS, **dict.fromkeys(off, "0")}
    return "; ".join(f"SET {name} = '{value}'" for name, value in settings.items())
