"""Answers of the server: their rows, and pgsluice's errors for those of the server and of libpq.

The SQLSTATE selects the error. libpq has no SQLSTATE for a failed connection attempt; there the
text shows whether the server answered, and whether its answer is temporary (starting up, shutting
down, too many clients).

Only the primary message is kept, because DETAIL and CONTEXT may contain values of rows; a primary
message that may contain a value is dropped, too. Source: the manual, appendix "PostgreSQL Error
Codes"; src/backend/replication/slot.c and logical.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import pq

from pgsluice.errors import (
    ConfigError,
    ForeignSource,
    PgsluiceError,
    ProtocolError,
    PublicationMissing,
    Remedy,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
    TableError,
)
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.sql import quote_identifier

# An answer of the server in libpq's words: "FATAL:  text", the severity in its language.
_ANSWER = re.compile(r"(?:^|failed: |\n)\w+:  (?P<message>[^\n]*)")
_NO_WALSENDER = r"max_wal_senders"
_FULL = rf"too many (clients|connections)|connection slots are reserved|{_NO_WALSENDER}"
_TEMPORARY = re.compile(
    r"starting up|shutting down|recovery mode|not yet accepting|not accepting connections"
    rf"|terminating connection|{_FULL}",
    re.IGNORECASE,
)
_CLIENT_REFUSALS = re.compile(
    r"no password supplied|password authentication|certificate|SSL|GSS|authentication method"
    r"|Peer authentication|channel binding|SCRAM",
    re.IGNORECASE,
)
_BAD_CONNINFO = re.compile(
    r"definition of service|service file|invalid (connection option|integer value|port|sslmode)"
    r"|missing \"=\"|invalid URI|unterminated quoted|could not match \d+ ",
    re.IGNORECASE,
)
_MAY_NOT_REPLICATE = (
    r"replication role|REPLICATION attribute|permission denied to (start WAL|use replication)"
)
_HINTS = (
    (r"password|authentication", "check user and password in the dsn, .pgpass or PGPASSWORD"),
    (
        r"no pg_hba\.conf entry.*, no encryption",
        "add sslmode=require to the dsn, or a line to the server's pg_hba.conf",
    ),
    (r"no pg_hba\.conf entry", "add a line for this host and user to the server's pg_hba.conf"),
    (r"certificate|SSL", "check sslmode, sslrootcert and sslcert in the dsn"),
    (
        r"unsupported startup parameter|replication.*not supported",
        "this looks like a connection pooler: connect to PostgreSQL itself",
    ),
    (
        _MAY_NOT_REPLICATE,
        "ALTER ROLE … REPLICATION (on a managed service its own replication role)",
    ),
    (_NO_WALSENDER, "raise max_wal_senders on the server, or end another walsender"),
    (
        _FULL,
        "raise max_connections or the CONNECTION LIMIT that is named, or lower copy_workers",
    ),
    (r"database .* does not exist", "check dbname in the dsn"),
)


def refused_connection(text: str, user: str = "", dbname: str = "") -> PgsluiceError:
    """The error for a failed connection attempt, which does not concern a single table: the server
    may refuse executors although it accepts the driver (pg_hba.conf, or a missing service file).

    Args:
        text: libpq's message.
        user, dbname: the role that connects, and the database, also of a walsender.
    """
    text = text.strip()
    if _BAD_CONNINFO.search(text):
        what = f"the source's dsn cannot be used: {_first_line(text)}"
        return ConfigError(what, remedy=Remedy.WAIT)
    answer = _ANSWER.search(text)
    message = answer["message"].strip() if answer else _last_line(text)
    if answer and not _TEMPORARY.search(message):
        hint = _grant(message, user, dbname) or _hint(message)
        what = f"the server refuses the connection: {message}"
        return SourceRefused(what, hint=hint, remedy=Remedy.WAIT)
    if not answer and _CLIENT_REFUSALS.search(text):
        return SourceRefused(message, hint=_hint(message), remedy=Remedy.WAIT)
    if answer:
        what = f"the server refuses the connection for now: {message}"
        return SourceUnreachable(what, hint=_hint(message))
    return SourceUnreachable(
        f"pgsluice cannot reach the server: {message}",
        hint="check that the server runs, and that the host and the port in the dsn are right",
    )


def refused_command(
    doing: str, sqlstate: str | None, message: str, detail: str, function: str = ""
) -> PgsluiceError:
    """The error for a command that the server refused.

    Args:
        doing: the activity, such as ``creating slot "s"``.
        sqlstate: None if the connection broke.
        detail: DETAIL; used only in errors about slots, where it contains no values.
        function: the server's function that raised it; unlike messages, it is not translated.
    """
    if _is_broken(sqlstate):
        return SourceUnreachable(f"{doing}: {message}", sqlstate=sqlstate)
    text = f"{doing}: {_said(sqlstate, message, function)}"
    match sqlstate:
        case "55006":
            return SlotInUse(
                text,
                hint="another process reads this slot: stop it, or use a slot of your own",
                sqlstate=sqlstate,
            )
        case "42704" if "publication" not in message + function:
            hint = f"if the slot was dropped: {COPY_ALL_AGAIN}"
            return SlotLost(text, hint=hint, sqlstate=sqlstate)
        case "42704":
            return PublicationMissing(
                text,
                hint="before PostgreSQL 18 the server cannot decode changes from when it was "
                "missing: create it, or rename it back; if that does not help, "
                f"{COPY_ALL_AGAIN}",
                sqlstate=sqlstate,
            )
        case "58P01":
            return SlotLost(text, hint=_COPY_AGAIN, sqlstate=sqlstate)
        case "55000" if "not created in this database" in message:
            return ForeignSource(
                text, hint="the slot belongs to another database", sqlstate=sqlstate
            )
        case "55000" if re.search(r"no longer|cannot read from|invalidated", message + detail):
            text = f"{text} ({detail})" if detail else text
            return SlotLost(text, hint=_COPY_AGAIN, sqlstate=sqlstate)
        case "55000" if "wal_level" in message:
            hint = "ALTER SYSTEM SET wal_level = logical, and restart the server"
        case "53400":
            hint = "raise max_replication_slots on the server, or drop an unused slot"
        case "42501":
            hint = (
                _hint(message) or "the role lacks a privilege: `pgsluice check CONFIG` shows which"
            )
        case "42710":
            hint = "choose another name for the slot, or drop the one that is there"
        case _:
            return SourceRefused(text, hint=_hint(message), sqlstate=sqlstate)
    return SourceRefused(text, hint=hint, sqlstate=sqlstate)


_OF_VALUES = ("22", "23", "P0")
"""Classes of SQLSTATE whose messages may contain a value, in any language and with any quotes:
data, constraints, and PL/pgSQL."""
_RAISE = "exec_stmt_raise"
"""The server's function behind a user's RAISE, which can have any message with any SQLSTATE."""


def _is_broken(sqlstate: str | None) -> bool:
    """Whether the error means that the connection broke, or that the server ended it."""
    return not sqlstate or sqlstate.startswith(("08", "57P"))


_COPY_AGAIN = f"the changes are gone from the server: {COPY_ALL_AGAIN}"


def refused_result(doing: str, result: pq.abc.PGresult) -> PgsluiceError:
    """The error for a failed PGresult of the ``pq`` layer."""

    def field(which: pq.DiagnosticField) -> str | None:
        value = result.error_field(which)
        return None if value is None else value.decode(errors="replace")

    sqlstate = field(pq.DiagnosticField.SQLSTATE)
    message = field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message().strip()
    detail = field(pq.DiagnosticField.MESSAGE_DETAIL) or ""
    function = field(pq.DiagnosticField.SOURCE_FUNCTION) or ""
    return refused_command(doing, sqlstate, message, detail, function)


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """A context that turns psycopg's errors into pgsluice's errors. ``doing``: the activity, with
    which the message starts: ``reading the catalog``."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or _first_line(str(error))
        detail = error.diag.message_detail or ""
        function = error.diag.source_function or ""
        raise refused_command(doing, error.sqlstate, message, detail, function) from error


@contextmanager
def table_errors(doing: str, table: str) -> Iterator[None]:
    """A context that turns the errors of a session that reads a table into pgsluice's errors.

    A broken session concerns all tables. Any other error may concern one table only: damaged pages,
    bytes that are invalid in the encoding, a row filter that fails for a row.

    Raises:
        SourceUnreachable: the session broke.
        TableError: the server refused a statement; it will be tried again.
    """
    try:
        yield
    except psycopg.Error as error:
        what = f"{doing}: {server_message(error)}"
        if _is_broken(error.sqlstate):
            raise SourceUnreachable(what, sqlstate=error.sqlstate) from error
        raise TableError(
            what,
            hint="the server cannot send the rows; a query of all of them there fails as well",
            remedy=Remedy.RETRY,
            table=table,
        ) from error


def server_message(error: psycopg.Error) -> str:
    """The server's message about a statement, without possible values of rows."""
    function = error.diag.source_function or ""
    return _said(error.sqlstate, error.diag.message_primary or _first_line(str(error)), function)


def _said(sqlstate: str | None, message: str, function: str) -> str:
    """A server's primary message; if it may contain a value, the name of its SQLSTATE instead."""
    if not sqlstate or not (sqlstate.startswith(_OF_VALUES) or function == _RAISE):
        return message
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        name = "Error"
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return f"{words} (SQLSTATE {sqlstate}; the server's log has details)"


def _grant(message: str, user: str, dbname: str) -> str | None:
    """The statement with which a superuser lets the role connect."""
    role = quote_identifier(user)
    for pattern, statement in (
        (r"not permitted to log in", f"ALTER ROLE {role} LOGIN;"),
        (_MAY_NOT_REPLICATE, f"ALTER ROLE {role} REPLICATION;"),
        (
            r"permission denied for database",
            f"GRANT CONNECT ON DATABASE {quote_identifier(dbname)} TO {role};",
        ),
        (r"role .* does not exist", f"CREATE ROLE {role} LOGIN REPLICATION;"),
    ):
        if user and re.search(pattern, message):
            return statement
    return None


def _hint(message: str) -> str | None:
    for pattern, hint in _HINTS:
        if re.search(pattern, message, re.IGNORECASE):
            return hint
    return None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _last_line(text: str) -> str:
    """The last line: libpq writes one for each address, and indents hints by a tab."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return lines[-1].strip().removeprefix("connection failed: ") if lines else "no reason given"


def no_answer(doing: str, silence_s: float) -> SourceUnreachable:
    """The error if the server keeps the connection open but does not answer."""
    return SourceUnreachable(
        f"{doing}: the server did not answer within {silence_s:g} s",
        hint="check that the server runs, and that a proxy between pgsluice and the server has not "
        "lost its connection to the server",
    )


def odd_answer(doing: str, what: str) -> ProtocolError:
    """The error for an answer that PostgreSQL never gives."""
    return ProtocolError(
        f"{doing}: {what}",
        hint="PostgreSQL does not answer like this: connect to the server itself, not to a "
        "pooler or another program in between",
    )


def status_name(result: pq.abc.PGresult | None) -> str:
    """The kind of an answer, in libpq's words."""
    if result is None:
        return "nothing"
    try:
        return pq.ExecStatus(result.status).name
    except ValueError:
        return f"status {result.status}"


def only_row(doing: str, rows: list[dict[str, str | None]], *names: str) -> dict[str, str]:
    """The values of an answer that has to be a single row with these columns; else raises
    ProtocolError."""
    if len(rows) != 1:
        raise odd_answer(doing, f"the server answered with {len(rows)} rows instead of one")
    values = {name: value for name in names if (value := rows[0].get(name)) is not None}
    if missing := [name for name in names if name not in values]:
        raise odd_answer(doing, f"the server's answer has no {missing[0]}")
    return values


def rows_of(result: pq.abc.PGresult) -> list[dict[str, str | None]]:
    """The rows of a result, values as text."""
    names = [
        (result.fname(i) or b"").decode(errors="backslashreplace") for i in range(result.nfields)
    ]
    return [
        {
            name: None
            if (value := result.get_value(row, i)) is None
            else value.decode(errors="backslashreplace")
            for i, name in enumerate(names)
        }
        for row in range(result.ntuples)
    ]
