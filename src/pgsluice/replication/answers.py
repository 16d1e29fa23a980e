"""A walsender's answers to commands: their rows, and the errors for unexpected answers."""

from __future__ import annotations

from psycopg import pq

from pgsluice.errors import ProtocolError, SourceUnreachable


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
    """The values of an answer that has to be a single row with these columns.

    Raises:
        ProtocolError: the answer is something else.
    """
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
