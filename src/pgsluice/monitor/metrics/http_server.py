"""Serves a few pages by HTTP, whatever its clients do.

A thread for each connection, and few of them: a new connection ends the oldest one if there are too
many, and each has a few seconds from its first to its last byte. So slow clients hold nothing but
their own connections, and never the process that serves them.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pgsluice.errors import ConfigError

T = TypeVar("T")
EVERY_S = 5.0
"""How often the status is read and rendered, at most, in seconds."""
_MOST_CONNECTIONS = 16
_CONNECTION_S = 5.0
_COMPRESSED_FROM = 4096
"""Bytes of an answer from which it is compressed, for clients that accept it."""
_POLL_S = 0.5
_END_S = 0.5
"""How long to wait for the end of a connection that was cut off."""


class Page(NamedTuple):
    """An answer by HTTP, with headers beside those that every answer has."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


Pages = Mapping[str, Callable[[], Page]]
"""What is served, by path; each function is called for each request."""
TEXT = "text/plain; charset=utf-8"


class Recent(Generic[T]):
    """A value that threads share: made at most once in a period of some seconds, by one of them."""

    def __init__(
        self, make: Callable[[], T], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None

    def __call__(self) -> T:
        """The value."""
        with self._lock:
            if self._made is None or self._clock() - self._made[0] >= self._every_s:
                made = self._make()  # its time does not count: else a slow one would never be kept
                self._made = self._clock(), made
            return self._made[1]


class _Server(TCPServer):
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], pages: Pages, connection_s: float) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._connection_s = connection_s
        self._open: dict[socket.socket, tuple[threading.Thread, float]] = {}
        """The thread of each connection, and when it has to end, in monotonic seconds."""
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self.is_local = ip_address(str(self.server_address[0])).is_loopback

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        if not self._has_room():
            self.shutdown_request(request)
            return
        work = (request, client_address)
        thread = threading.Thread(
            target=self._serve, args=work, name="pgsluice monitor client", daemon=True
        )
        with self._lock:
            self._open[request] = thread, time.monotonic() + self._connection_s
        try:
            thread.start()
        except RuntimeError:  # the system lets us start no more threads
            self._forget(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            with suppress(OSError):
                self.finish_request(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
        self.shutdown_request(request)

    def _has_room(self) -> bool:
        """End the oldest connection if there are too many; false if it does not end."""
        with self._lock:
            if len(self._open) < _MOST_CONNECTIONS:
                return True
            oldest, (thread, _) = next(iter(self._open.items()))
        _cut(oldest)
        thread.join(_END_S)
        return not thread.is_alive()

    def service_actions(self) -> None:
        """End the connections whose time is over; called again and again."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, (_, ends_by) in self._open.items() if ends_by <= now]
        for request in late:
            _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a client does wrong is nothing to log."""


def _is_address(host: str) -> bool:
    """Whether a host is given as an address or as ``localhost``, or not at all, as by HTTP/1.0.

    A website can have its name resolve to loopback, and then its script in a browser on this
    machine would read what is served here.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("", "localhost") or bool(ip_address(name))
    except ValueError:
        return False


def _cut(request: socket.socket) -> None:
    """End a connection; its thread then sees that it has ended."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_version = "pgsluice"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        page = self._page()
        body = page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if len(body) > _COMPRESSED_FROM and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in page.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Answer a request without the page."""
        self.do_GET()

    def _page(self) -> Page:
        assert isinstance(self.server, _Server)
        if self.server.is_local and not _is_address(self.headers.get("Host", "")):
            text = "pgsluice listens on loopback: ask by address, or by the name localhost\n"
            return Page(HTTPStatus.MISDIRECTED_REQUEST, TEXT, text.encode())
        pages = self.server.pages
        make = pages.get(self.path.partition("?")[0])
        if make is None:
            paths = "\n".join(pages)
            return Page(HTTPStatus.NOT_FOUND, TEXT, f"pgsluice serves:\n{paths}\n".encode())
        try:
            return make()
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n"
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, text.encode(errors="replace"))

    def log_message(self, *_: object) -> None:
        """Nothing is logged: a probe comes every few seconds."""


class MonitorServer:
    """Serves pages from a thread; a context manager.

    Args:
        address: host and port to listen at.
        connection_s: how long a client may take to ask and to read the answer.
        setting: where the address is from, for the error.

    Raises:
        ConfigError: it is not possible to listen there.
    """

    def __init__(
        self,
        address: tuple[str, int],
        pages: Pages,
        *,
        connection_s: float = _CONNECTION_S,
        setting: str = "[monitor] listen",
    ) -> None:
        try:
            self._server = _Server(address, pages, connection_s)
        except (OSError, UnicodeError) as error:
            host, port = address
            reason = getattr(error, "strerror", None) or str(error)
            reason = reason[:1].lower() + reason[1:]
            raise ConfigError(
                f"{setting}: pgsluice cannot listen at {host}:{port}: {reason}",
                hint="choose a free port, or end the program that uses this port",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="pgsluice monitor", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that the server listens at."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, of a server that never served."""
        self._server.server_close()

    def __enter__(self) -> MonitorServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()
