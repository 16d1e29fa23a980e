"""Connecting: settings, libpq's features, and the refusals of connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import await_that

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ConfigError, SourceRefused, SourceUnreachable
from pgsluice.replication import ReplicationConnection, connect_sql

SETTINGS = {
    "DateStyle": "ISO, DMY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "search_path": '""',
    "client_encoding": "UTF8",
    "quote_all_identifiers": "off",
}


def _connect_both(dsn: str) -> tuple[Callable[[str], str | None], Callable[[], None]]:
    """Ask the same on a SQL session and a walsender; both must agree."""
    session = connect_sql(dsn, application="test")
    walsender = ReplicationConnection.connect(dsn, application="test")

    def show(name: str) -> str | None:
        (row,) = session.execute(f"SHOW {name}").fetchall()
        (other,) = walsender.command(f"SHOW {name}")
        assert row[0] == next(iter(other.values()))
        return str(row[0])

    def close() -> None:
        session.close()
        walsender.close()

    return show, close


def test_sessions_have_what_makes_text_lossless(each_server: EmbeddedServer) -> None:
    # Against what the role would have by itself.
    own = (
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "timezone = 'Asia/Tokyo'",
        "quote_all_identifiers = on",
    )
    with connect_sql(each_server.dsn()) as connection:
        connection.execute("CREATE ROLE stubborn SUPERUSER LOGIN")
        for setting in own:
            connection.execute(f"ALTER ROLE stubborn SET {setting}")
    show, close = _connect_both(each_server.dsn(user="stubborn"))
    try:
        assert {name: show(name) for name in SETTINGS} == SETTINGS
        assert show("application_name") == "pgsluice test"
    finally:
        close()
        with connect_sql(each_server.dsn()) as connection:
            connection.execute("DROP ROLE stubborn")


def test_no_timeout_of_the_role_ends_a_session(each_server: EmbeddedServer) -> None:
    # The server knows which timeouts a role can have. One of them ends no session of ours: the
    # walsender's is answered.
    query = """
        SELECT name FROM pg_settings WHERE context = 'user' AND name LIKE '%timeout'
        AND name <> 'wal_sender_timeout' ORDER BY name
    """
    with connect_sql(each_server.dsn()) as connection:
        names = [name for (name,) in connection.execute(query)]
        connection.execute("CREATE ROLE hasty SUPERUSER LOGIN")
        for name in names:
            connection.execute(f"ALTER ROLE hasty SET {name} = '1h'")
    show, close = _connect_both(each_server.dsn(user="hasty"))
    try:
        assert {name: show(name) for name in names} == dict.fromkeys(names, "0")
        assert {"statement_timeout", "lock_timeout"} <= {*names}
    finally:
        close()
        with connect_sql(each_server.dsn()) as connection:
            connection.execute("DROP ROLE hasty")


def test_the_users_own_options_stay(server: EmbeddedServer) -> None:
    dsn = server.dsn(options="-c work_mem=7MB", application_name="mine")
    show, close = _connect_both(dsn)
    assert show("work_mem") == "7MB"
    assert show("application_name") == "mine"
    close()


@pytest.mark.parametrize(("given", "idle_s"), [("", "30"), (" keepalives_idle=7", "7")])
def test_a_server_that_went_away_is_noticed(
    server: EmbeddedServer, given: str, idle_s: str
) -> None:
    with connect_sql(server.dsn() + given) as connection:
        options = {option.keyword: option.val for option in connection.pgconn.info}
    assert options[b"keepalives_idle"] == idle_s.encode()
    assert options[b"keepalives_count"] == b"3"


def test_a_server_that_went_away_is_not_asked_at_the_end_of_a_session(
    server: EmbeddedServer,
) -> None:
    with connect_sql(server.dsn()) as session, connect_sql(server.dsn()) as other:
        session.execute("BEGIN READ ONLY")
        ((backend,),) = session.execute("SELECT pg_backend_pid()").fetchall()
        other.execute("SELECT pg_terminate_backend(%s)", [backend])
    assert session.closed


def test_a_service_file_is_enough(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = tmp_path / "services.conf"
    services.write_text(f"[shop]\nhost=127.0.0.1\nport={server.port}\nuser=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGDATABASE", "postgres")
    with ReplicationConnection.connect("service=shop") as connection:
        assert connection.identify_system().dbname == "postgres"
    with pytest.raises(ConfigError, match="service"):
        connect_sql("service=nothing_of_that_name")


def test_a_socket_is_as_good_as_tcp(server: EmbeddedServer) -> None:
    with ReplicationConnection.connect(server.dsn(host=str(server.directory))) as connection:
        assert connection.identify_system().timeline >= 1


def test_identify_system_agrees_with_the_catalog(each_server: EmbeddedServer) -> None:
    with ReplicationConnection.connect(each_server.dsn()) as walsender:
        identity = walsender.identify_system()
        assert walsender.server_version // 10000 == each_server.programs.major
    with connect_sql(each_server.dsn()) as connection:
        row = connection.execute(
            "SELECT system_identifier::text FROM pg_control_system()"
        ).fetchone()
    assert row == (identity.system_id,)
    assert identity.dbname == "postgres"


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refuses
        dsn = f"host=127.0.0.1 port={taken.getsockname()[1]} user=u dbname=d"
        with pytest.raises(SourceUnreachable, match="cannot reach the server"):
            ReplicationConnection.connect(dsn, timeout_s=2)


def test_a_host_that_has_no_address() -> None:
    with pytest.raises(SourceUnreachable, match="cannot reach the server"):
        connect_sql("host=nowhere.invalid user=u dbname=d", timeout_s=2)


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} user=u dbname=d"
        with pytest.raises(SourceUnreachable, match="timeout"):
            ReplicationConnection.connect(dsn, timeout_s=1)


@pytest.mark.parametrize("dsn", ["postgresql://u:pa ss@host:x/d", "host", "colour=blue", "host='x"])
def test_a_dsn_that_is_none_is_a_mistake_of_the_configuration(dsn: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect_sql(dsn)
    assert "pa ss" not in str(caught.value)


def test_an_unknown_database(server: EmbeddedServer) -> None:
    with pytest.raises(SourceRefused, match='database "nothing" does not exist') as caught:
        ReplicationConnection.connect(server.dsn("nothing"))
    assert "dbname" in str(caught.value)


def test_a_role_without_replication(each_server: EmbeddedServer) -> None:
    with connect_sql(each_server.dsn()) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        try:
            with pytest.raises(SourceRefused, match="REPLICATION"):
                ReplicationConnection.connect(each_server.dsn(user="reader"))
        finally:
            connection.execute("DROP ROLE reader")


def test_a_wrong_password_is_refused_and_not_shown(
    own_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = own_server()
    with connect_sql(server.dsn()) as connection:
        connection.execute("SET password_encryption = 'scram-sha-256'")  # md5 before 14
        connection.execute("CREATE ROLE app LOGIN REPLICATION PASSWORD 'right'")
        (server.data_dir / "pg_hba.conf").write_text(
            "host all,replication app 127.0.0.1/32 scram-sha-256\n"
            "host all,replication postgres 127.0.0.1/32 trust\n"
        )
        connection.execute("SELECT pg_reload_conf()")
    with pytest.raises(SourceRefused, match="password authentication failed") as caught:
        ReplicationConnection.connect(server.dsn(user="app", password="wrong"))
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "nothing"))
    with pytest.raises(SourceRefused, match="no password supplied"):
        connect_sql(server.dsn(user="app"))
    passwords = tmp_path / "pgpass"
    passwords.write_text("127.0.0.1:*:*:app:right\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    with ReplicationConnection.connect(server.dsn(user="app")) as walsender:
        assert walsender.identify_system().dbname == "postgres"
    with pytest.raises(SourceRefused, match=r"pg_hba\.conf"):
        connect_sql(server.dsn(user="another"))


def test_no_walsender_is_left(own_server: Callable[..., EmbeddedServer]) -> None:
    server = own_server(max_wal_senders="1")
    with (
        ReplicationConnection.connect(server.dsn()),
        pytest.raises(SourceUnreachable, match="max_wal_senders"),  # one may end soon
    ):
        ReplicationConnection.connect(server.dsn())


def test_too_many_clients_passes(own_server: Callable[..., EmbeddedServer]) -> None:
    # Before 12 walsenders are taken from max_connections.
    settings = {"max_connections": "4", "max_wal_senders": "1"}
    server = own_server(**settings, superuser_reserved_connections="0")
    with contextlib.ExitStack() as sessions:
        for _ in range(4):
            sessions.enter_context(connect_sql(server.dsn()))
        with pytest.raises(SourceUnreachable, match="too many clients"):
            connect_sql(server.dsn())

    def has_room() -> bool:
        """The server's processes end after their clients have gone."""
        with contextlib.suppress(SourceUnreachable), connect_sql(server.dsn()):
            return True
        return False

    await_that(has_room)
