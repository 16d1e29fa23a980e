"""Waits on the stream's socket: for many bytes while data flows, otherwise for the first one.

A reader that wakes up for each small packet slows the walsender down. ``SO_RCVLOWAT`` makes poll()
report a TCP socket only when that many bytes have arrived. It is raised while data flows. When the
stream is idle, it is reset, so that the first bytes are noticed at once.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import termios

from psycopg import pq

_LOW_WATER_BYTES = 64 * 1024
#: How long bytes below the mark may wait in the socket.
SHORT_WAIT_S = 0.02


class LowWater:
    """Waits for one connection's socket.

    Unix sockets do not support it. With TLS it is not used, because libpq may have bytes that
    poll() cannot see; then each wait is short.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._is_usable = False
        self._is_raised = False
        self._poll = select.poll()

    def enable(self) -> None:
        """Call at the start of the stream."""
        with socket.socket(fileno=os.dup(self._pgconn.socket)) as one:
            is_tcp = one.family != socket.AF_UNIX
        self._is_usable = sys.platform == "linux" and is_tcp and not self._pgconn.ssl_in_use

    def disable(self) -> None:
        """Call at the end of the stream: poll() then reports each byte again."""
        self._raise(False)
        self._is_usable = False

    def wait(self, timeout_s: float, *, wants_write: bool) -> None:
        events = select.POLLIN | (select.POLLOUT if wants_write else 0)
        fd = self._pgconn.socket
        if fd < 0:
            return
        self._poll.register(fd, events)
        if self._pgconn.ssl_in_use:
            timeout_s = min(timeout_s, SHORT_WAIT_S)
        if not self._is_usable:
            self._poll.poll(timeout_s * 1000)
            return
        if self._is_raised:
            first_s = min(timeout_s, SHORT_WAIT_S)
            if self._poll.poll(first_s * 1000) or _readable_bytes(fd) > 0:
                return
            timeout_s -= first_s
            self._raise(False)
        if self._poll.poll(max(timeout_s, 0) * 1000):
            self._raise(True)

    def _raise(self, is_raised: bool) -> None:
        if self._is_usable and self._is_raised != is_raised:
            with socket.socket(fileno=os.dup(self._pgconn.socket)) as one:
                size = _LOW_WATER_BYTES if is_raised else 1
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        self._is_raised = is_raised


def _readable_bytes(fd: int) -> int:
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(size)
