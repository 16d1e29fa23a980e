"""libpq's and the server's words, as errors of ours: for a person, and for a decision."""

from __future__ import annotations

import psycopg
import pytest

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import (
    ConfigError,
    Failure,
    PgsluiceError,
    PublicationMissing,
    Remedy,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
    TableError,
)
from pgsluice.replication import connect_sql, source_errors, table_errors
from pgsluice.replication.refusals import refused_command, refused_connection

AT = 'connection failed: connection to server at "10.0.0.5", port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (AT + "Connection refused\n\tIs the server running?", SourceUnreachable, "refused"),
        (AT + "FATAL:  the database system is starting up", SourceUnreachable, "starting up"),
        (AT + "FATAL:  sorry, too many clients already", SourceUnreachable, "raise max_conn"),
        (AT + 'FATAL:  too many connections for role "r"', SourceUnreachable, "copy_workers"),
        ("connection timeout expired", SourceUnreachable, "timeout"),
        ("[Errno -2] Name or service not known", SourceUnreachable, "not known"),
        (AT + "server closed the connection unexpectedly", SourceUnreachable, "unexpectedly"),
        (AT + 'FATAL:  password authentication failed for user "u"', SourceRefused, "password"),
        # The server speaks its own language; that it answered is seen by the form.
        (AT + "ВАЖНО:  пользователь не прошёл проверку", SourceRefused, "не прошёл"),
        (AT + "FATAL:  unsupported startup parameter: replication", SourceRefused, "pooler"),
        (AT + 'FATAL:  no pg_hba.conf entry for host "::1"', SourceRefused, "add a line"),
        (
            AT + 'FATAL:  no pg_hba.conf entry for host "h", no encryption',
            SourceRefused,
            "=require",
        ),
        (AT + "fe_sendauth: no password supplied", SourceRefused, ".pgpass"),
        (AT + "SSL error: certificate verify failed", SourceRefused, "sslrootcert"),
        (AT + "server does not support SSL, but SSL was required", SourceRefused, "sslmode"),
        ('definition of service "shop" not found', ConfigError, "service"),
        ('invalid sslmode value: "maybe"', ConfigError, "sslmode"),
    ],
)
def test_a_connection_that_fails(text: str, kind: type[PgsluiceError], said: str) -> None:
    error = refused_connection(text)
    assert type(error) is kind
    assert said in str(error)
    assert "\t" not in str(error)
    assert Failure.of(error).remedy is Remedy.WAIT, "it is the fault of no table"


def test_that_a_connection_failed_is_said_once() -> None:
    refused, no_password = (
        str(refused_connection(AT + why)).partition("\n")[0]
        for why in ("Connection refused", "fe_sendauth: no password supplied")
    )
    to = 'connection to server at "10.0.0.5", port 5432 failed'
    assert refused == f"pgsluice cannot reach the server: {to}: Connection refused"
    assert no_password == f"{to}: fe_sendauth: no password supplied"


def test_several_addresses_are_told_apart_by_the_last() -> None:
    text = AT + "Connection refused\n" + AT + "FATAL:  role does not exist"
    assert isinstance(refused_connection(text), SourceRefused)


@pytest.mark.parametrize(
    ("message", "function", "kind"),
    [
        ("Publikation »shop« existiert nicht", "get_publication_oid", PublicationMissing),
        ("Replikations-Slot »s« existiert nicht", "ReplicationSlotAcquire", SlotLost),
        ('publication "shop" does not exist', "", PublicationMissing),
        ('replication slot "s" does not exist', "", SlotLost),
    ],
)
def test_what_is_missing_is_told_in_any_language(
    message: str, function: str, kind: type[PgsluiceError]
) -> None:
    assert type(refused_command("receiving", "42704", message, "", function)) is kind


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT 'secret'::int", "invalid_text_representation (SQLSTATE 22P02;"),
        ("DO $$BEGIN RAISE 'secret'; END$$", "raise_exception (SQLSTATE P0001;"),
        ("DO $$BEGIN RAISE 'secret' USING ERRCODE = '42501'; END$$", "(SQLSTATE 42501;"),
        ("DO $$BEGIN RAISE 'secret' USING ERRCODE = 'WALK1'; END$$", "error (SQLSTATE WALK1;"),
        ("SELECT 1 / 0", "division_by_zero (SQLSTATE 22012; the server's log has details)"),
        ("SELECT * FROM nowhere", 'relation "nowhere" does not exist'),
    ],
)
def test_a_statement_that_fails_keeps_the_values_to_itself(
    server: EmbeddedServer, statement: str, words: str
) -> None:
    with connect_sql(server.dsn()) as connection:
        with pytest.raises(SourceRefused) as caught, source_errors("copying t"):
            connection.execute(statement.encode())
        with pytest.raises(TableError) as of_table, table_errors("copying t", "public.t"):
            connection.execute(statement.encode())
    for error in (caught.value, of_table.value):
        assert error.what.startswith("copying t: ")
        assert words in error.what
        assert "secret" not in str(error)
    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_a_session_that_is_ended_from_behind(server: EmbeddedServer) -> None:
    with (
        connect_sql(server.dsn()) as connection,
        connect_sql(server.dsn()) as other,
    ):
        other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(SourceUnreachable), source_errors("reading the catalog"):
            connection.execute("SELECT 1")
