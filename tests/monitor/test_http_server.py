"""Pages by HTTP: slow, broken and many clients hold nothing but their own connections."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus

import pytest
from tests.support.waiting import HANGS_S, await_that

from pgsluice.errors import ConfigError
from pgsluice.monitor.metrics.http_server import TEXT, MonitorServer, Page

_MOST_THREADS = 16


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _fails() -> Page:
    raise ValueError("no figures")


_PAGES = {"/hello": lambda: Page(HTTPStatus.OK, TEXT, b"hello\n"), "/fails": _fails}


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    with MonitorServer(("127.0.0.1", port), _PAGES):
        yield port


def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _threads() -> int:
    return sum(thread.name == "pgsluice monitor client" for thread in threading.enumerate())


def test_pages_are_served_by_their_path(port: int) -> None:
    assert ask(port, "/hello?x=1") == (200, b"hello\n")
    assert ask(port, "/hello", "HEAD") == (200, b"")
    assert ask(port, "/else") == (404, b"pgsluice serves:\n/hello\n/fails\n")
    assert ask(port, "/hello", "POST")[0] == 501


def test_a_page_that_fails_ends_nothing(port: int) -> None:
    assert ask(port, "/fails") == (500, b"ValueError: no figures\n")
    assert ask(port, "/hello") == (200, b"hello\n")


def test_clients_that_say_nothing_keep_nobody_out(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(5 * _MOST_THREADS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(b"GET /hello HTTP/1.1\r\nX-Slow: ")
        assert ask(port, "/hello") == (200, b"hello\n")
        assert _threads() <= _MOST_THREADS
    await_that(lambda: not _threads(), "the threads have ended with their clients")


def test_a_client_has_a_limited_time() -> None:
    port = free_port()
    with MonitorServer(("127.0.0.1", port), _PAGES, connection_s=0.01):
        with socket.create_connection(("127.0.0.1", port), timeout=HANGS_S) as slow:
            slow.sendall(b"GET /hello HTTP/1.1\r\n")
            assert slow.recv(1) == b""
        await_that(lambda: not _threads(), "its thread has ended")


def test_what_is_no_http_is_answered_or_cut_off(port: int) -> None:
    for nonsense in (b"\x00\xff\r\n\r\n", b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", port), timeout=HANGS_S) as client:
            client.sendall(nonsense)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
    assert ask(port, "/hello") == (200, b"hello\n")


def test_the_end_waits_for_no_client() -> None:
    port = free_port()
    with MonitorServer(("127.0.0.1", port), _PAGES):
        slow = socket.create_connection(("127.0.0.1", port))
        await_that(lambda: _threads() == 1, "the client is there")
    with MonitorServer(("127.0.0.1", port), _PAGES):  # at once, on the same port
        assert ask(port, "/hello") == (200, b"hello\n")
    slow.close()
    await_that(lambda: not _threads(), "its thread has ended")


def test_a_port_in_use_is_named(port: int) -> None:
    with pytest.raises(ConfigError) as caught:
        MonitorServer(("127.0.0.1", port), _PAGES)
    assert caught.value.what == (
        f"[monitor] listen: pgsluice cannot listen at 127.0.0.1:{port}: address already in use"
    )
