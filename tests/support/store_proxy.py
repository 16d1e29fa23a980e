"""A proxy before an object store that loses answers, is slow, and counts requests.

A fault comes *after* the store has done what it was asked for, unless it says otherwise: that is
what makes an answer ambiguous.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Fault(StrEnum):
    """What a client sees instead of the store's answer."""

    ERROR = "500"
    SLOW_DOWN = "503"
    DROP = "drop"
    HANG = "hang"
    DRIP = "drip"
    REFUSED_BEFORE = "503 before"  # the store has not seen the request
    DROP_BEFORE = "drop before"


class Request(NamedTuple):
    """What a client has asked for."""

    method: str
    path: str


Choose = Callable[[Request], Fault | None]
"""Decides each request's fate; called by many threads."""

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_DRIP_S = 0.05


class StoreProxy:
    """The proxy's settings, which a test changes while it works.

    Attributes:
        endpoint: its URL.
        choose: a fault for each request; None: none.
        delay_s: added to each request.
        refusal: a status and a code that answer each request, which the store does not get.
        left_out: headers, in small letters, that the store does not get.
        hang_s: how long a hanging request is held before its connection is closed.
        requests: those so far.
        faults: those so far.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.endpoint = ""
        self.choose: Choose | None = None
        self.delay_s = 0.0
        self.hang_s = 30.0
        self.refusal: tuple[int, str] | None = None
        self.left_out: frozenset[str] = frozenset()
        self.requests: list[Request] = []
        self.faults: list[tuple[Request, Fault]] = []
        self.closing = threading.Event()

    def fault_next(self, fault: Fault, method: str = "PUT", times: int = 1) -> None:
        """Have the next requests of a method end so; of any, if it is empty."""
        left = [fault] * times
        lock = threading.Lock()

        def choose(request: Request) -> Fault | None:
            with lock:
                return left.pop() if method in ("", request.method) and left else None

        self.choose = choose


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: StoreProxy
    _connection: http.client.HTTPConnection | None = None

    def _forward(self) -> None:
        proxy = self.proxy
        request = Request(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.requests.append(request)
        fault = proxy.choose(request) if proxy.choose else None
        if fault is not None:
            proxy.faults.append((request, fault))
        if proxy.delay_s:
            proxy.closing.wait(proxy.delay_s)
        if proxy.refusal is not None:
            status, code = proxy.refusal
            text = f"<Error><Code>{code}</Code><Message>A message.</Message></Error>"
            self._answer(status, {}, text.encode())
            return
        match fault:
            case Fault.DROP_BEFORE:
                self.close_connection = True
                return
            case Fault.REFUSED_BEFORE:
                self._answer(503, {}, _slow_down())
                return
        try:
            status, headers, content = self._ask(body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # the store is away
            return
        match fault:
            case Fault.ERROR:
                self._answer(500, {}, b"")
            case Fault.SLOW_DOWN:
                self._answer(503, {}, _slow_down())
            case Fault.DROP:
                self.close_connection = True
            case Fault.HANG:
                proxy.closing.wait(proxy.hang_s)
                self.close_connection = True
            case _:
                self._answer(status, headers, content, slowly=fault is Fault.DRIP)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - their names

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.proxy.upstream)
        upstream = self._connection
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for key, value in self.headers.items():  # signed as they are, with the host
                if key.lower() not in {"connection", "keep-alive", *self.proxy.left_out}:
                    upstream.putheader(key, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            upstream.close()
            raise
        kept = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        return answer.status, kept, content

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, slowly: bool = False
    ) -> None:
        self.send_response_only(status)
        if self.command != "HEAD" and status not in (204, 304):
            headers = {**headers, "Content-Length": str(len(body))}
        for key, value in headers.items():
            self.send_header(key, value)
        try:
            self.end_headers()
            if self.command == "HEAD":
                return
            if slowly:
                for start in range(0, len(body), max(1, len(body) // 20)):
                    self.wfile.write(body[start : start + max(1, len(body) // 20)])
                    self.proxy.closing.wait(_DRIP_S)
            else:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has given up

    def finish(self) -> None:
        if self._connection is not None:
            self._connection.close()
        super().finish()

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error."""


def _slow_down() -> bytes:
    return (
        b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    )


@contextmanager
def store_proxy(upstream: str) -> Iterator[StoreProxy]:
    """A proxy before the store of a URL."""
    proxy = StoreProxy(upstream)
    handler = type("_Handler", (_Handler,), {"proxy": proxy})
    server = _Server(("127.0.0.1", 0), handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
