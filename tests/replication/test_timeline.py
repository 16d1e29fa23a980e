"""A server's timeline history: as its file says, and as the command brings it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ProtocolError, SourceRefused
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection, TimelineSwitch
from pgsluice.replication.timeline import parse_history

TWO = "1\t0/3000148\tno recovery target specified\n\n2\t1A/5000028\tbefore 2026-11-20 10:00:00+00\n"


def test_each_line_is_a_timeline_that_ended() -> None:
    assert parse_history(TWO, 3) == (
        TimelineSwitch(1, Lsn.parse("0/3000148")),
        TimelineSwitch(2, Lsn.parse("1A/5000028")),
    )


def test_comments_empty_lines_and_line_ends_of_others_mean_nothing() -> None:
    text = "# made by hand\r\n\r\n  1 0/28  \r\n   # more\n"
    assert parse_history(text, 2) == (TimelineSwitch(1, Lsn(0x28)),)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "names no timeline"),
        ("# nothing\n", 1, "names no timeline"),
        ("one\t0/28\tx\n", 1, "no timeline with an LSN"),
        ("1\t28\tx\n", 1, "no timeline with an LSN"),
        ("1\t0/123456789\tx\n", 1, "no timeline with an LSN"),
        ("\n1\t0/28\tx\n1\t0/38\tx\n", 3, "out of order"),
        ("2\t0/28\tx\n1\t0/38\tx\n", 2, "out of order"),
        ("3\t0/28\tx\n", 1, "out of order"),
        ("0\t0/28\tx\n", 1, "out of order"),
        ("1\t0/38\tx\n2\t0/28\tx\n", 2, "is before"),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        parse_history(text, 3)
    assert caught.value.facts == {"timeline": 3, "line": line}
    assert "00000003.history" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    try:
        switches = parse_history(text, 9)
    except ProtocolError:
        return
    assert [one.timeline for one in switches] == sorted({one.timeline for one in switches})


def test_the_first_timeline_has_no_history(each_server: EmbeddedServer) -> None:
    with ReplicationConnection.connect(each_server.dsn()) as connection:
        assert connection.identify_system().timeline == 1
        assert connection.timeline_history(1) == ()


def test_a_history_that_the_server_has_not_is_refused(each_server: EmbeddedServer) -> None:
    with ReplicationConnection.connect(each_server.dsn()) as connection:
        with pytest.raises(SourceRefused, match="history of timeline 7") as caught:
            connection.timeline_history(7)
        assert caught.value.timeline == 7
        # And the connection can be used on.
        assert connection.identify_system().timeline == 1


def test_the_history_comes_as_the_server_has_it(each_server: EmbeddedServer) -> None:
    path = each_server.data_dir / "pg_wal" / "00000009.history"
    path.write_bytes('1\t0/28\tat restore point "Übung"\n'.encode("latin-1"))
    try:
        with ReplicationConnection.connect(each_server.dsn()) as connection:
            (switch,) = connection.timeline_history(9)
    finally:
        path.unlink()
    assert (switch.timeline, switch.lsn) == (1, Lsn(0x28))


def test_the_dsn_of_one_among_several_hosts_is_that_server_s(each_server: EmbeddedServer) -> None:
    dsn = f"host=127.0.0.1,127.0.0.1 port=1,{each_server.port} user=postgres dbname=postgres"
    with (
        ReplicationConnection.connect(dsn) as first,
        ReplicationConnection.connect(first.server_dsn) as second,
    ):
        assert first.identify_system() == second.identify_system()
        assert f"port={each_server.port} " in f"{first.server_dsn} "
