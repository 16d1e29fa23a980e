"""A proxy before a real server, which breaks one thing that the server says.

It reads both directions message by message. A :class:`Fault` sees each connection, each command of
the client and each message of the server, and says what the client gets instead. Most faults act
once. Afterwards the proxy only forwards, so a client that connects again meets a sound server.
Source: the manual, sections "Message Formats" and "Streaming Replication Protocol".
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg.conninfo import make_conninfo

HEADER = struct.Struct(">cI")
FRAME_HEADER_BYTES = 25


class Action(enum.Enum):
    """What the proxy does to a connection, besides sending bytes."""

    CLOSE = "end the connection in order"
    RESET = "end the connection with an RST"
    SILENCE = "send nothing more, and keep the connection open"


Reply = Sequence[bytes | Action]


@dataclass(frozen=True)
class Message:
    """One message of the server."""

    tag: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return message(self.tag, self.body)

    @property
    def frame_tag(self) -> bytes:
        """``k`` for a keepalive, the tag of the pgoutput message for data, else nothing."""
        if self.tag != b"d":
            return b""
        return self.body[FRAME_HEADER_BYTES:][:1] if self.body[:1] == b"w" else self.body[:1]

    @property
    def pgoutput(self) -> bytes:
        """The pgoutput message of a frame."""
        return self.body[FRAME_HEADER_BYTES:]

    def with_pgoutput(self, content: bytes) -> bytes:
        """The same frame around another pgoutput message."""
        return replace(self, body=self.body[:FRAME_HEADER_BYTES] + content).raw


class Fault:
    """What a server does wrong: by default, nothing.

    Attributes:
        is_walsender: whether it happens on connections for replication, or on plain ones.
        lasts: whether it goes on after it has acted.
        has_acted: whether it has happened.
    """

    def __init__(self, *, is_walsender: bool = True, lasts: bool = False) -> None:
        self.is_walsender = is_walsender
        self.lasts = lasts
        self.has_acted = False

    @property
    def is_over(self) -> bool:
        return self.has_acted and not self.lasts

    def connecting(self) -> Reply | None:
        """Instead of the answer to a startup packet."""
        return None

    def asked(self, command: str) -> Reply | None:
        """Instead of the answer to a command, which the server does not get then."""
        return None

    def said(self, said: Message) -> Reply | None:
        """Instead of a message of the server's."""
        return None


class Connecting(Fault):
    """Answers the startup packet."""

    def __init__(self, *reply: bytes | Action, is_walsender: bool = True) -> None:
        super().__init__(is_walsender=is_walsender)
        self._reply = reply

    def connecting(self) -> Reply:
        return self._reply


class Asked(Fault):
    """Answers the first command that begins with these words."""

    def __init__(self, words: str, *reply: bytes | Action, is_walsender: bool = True) -> None:
        super().__init__(is_walsender=is_walsender)
        self._words, self._reply = words, reply

    def asked(self, command: str) -> Reply | None:
        return self._reply if command.startswith(self._words) else None


class Said(Fault):
    """Edits the nth message of those that are chosen."""

    def __init__(
        self, is_chosen: Callable[[Message], bool], edit: Callable[[Message], Reply], nth: int = 1
    ) -> None:
        super().__init__()
        self._is_chosen, self._edit, self._left = is_chosen, edit, nth

    def said(self, said: Message) -> Reply | None:
        if not self._is_chosen(said):
            return None
        self._left -= 1
        return self._edit(said) if self._left == 0 else None


class Swapped(Fault):
    """Sends the first frame of one tag only after the next one of another."""

    def __init__(self, first: str, then: str) -> None:
        super().__init__(lasts=True)
        self._first, self._then = first.encode(), then.encode()
        self._held: bytes | None = None

    def said(self, said: Message) -> Reply | None:
        if self._held is None and said.frame_tag == self._first:
            self._held = said.raw
            return []
        if self._held is not None and said.frame_tag == self._then:
            self.lasts = False
            return [said.raw, self._held]
        return None


class EachFrame(Fault):
    """Sends each frame otherwise, to the end."""

    def __init__(self, edit: Callable[[Message], Reply]) -> None:
        super().__init__(lasts=True)
        self._edit = edit

    def said(self, said: Message) -> Reply | None:
        return self._edit(said) if said.tag == b"d" else None


@dataclass(frozen=True)
class _Peers:
    client: socket.socket
    server: socket.socket
    is_walsender: bool


class HostileProxy:
    """Listens on loopback, and connects each client to the server behind it; a context manager.

    Args:
        port: of the real server.
        fault: what it does wrong.
    """

    def __init__(self, port: int, fault: Fault) -> None:
        self._server_port, self._fault = port, fault
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def dsn(self, dsn: str) -> str:
        """A connection string of the server, through this proxy."""
        return make_conninfo(
            dsn,
            host="127.0.0.1",
            port=self.port,
            sslmode="disable",
            gssencmode="disable",
        )

    def __enter__(self) -> HostileProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            startup = _read_startup(client)
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets.append(server)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peers = _Peers(client, server, b"\0replication\0database\0" in startup)
            if self._acts(peers, self._fault.connecting):
                return
            server.sendall(startup)
            threading.Thread(target=self._forward_commands, args=(peers,), daemon=True).start()
            for tag, body in _messages(server):
                said = Message(tag, body)
                if not self._acts(peers, lambda said=said: self._fault.said(said)):
                    client.sendall(said.raw)
            client.shutdown(socket.SHUT_WR)

    def _forward_commands(self, peers: _Peers) -> None:
        with contextlib.suppress(OSError, EOFError):
            for tag, body in _messages(peers.client):
                # A simple query, or Parse: a name, then the statement.
                texts = {b"Q": body, b"P": body.partition(b"\0")[2]}
                command = texts.get(tag, b"").partition(b"\0")[0].decode().strip()
                if not command or not self._acts(
                    peers, lambda command=command: self._fault.asked(command)
                ):
                    peers.server.sendall(message(tag, body))
        with contextlib.suppress(OSError):
            peers.server.shutdown(socket.SHUT_WR)
        # The kernel resets a connection that is closed with unread bytes, and throws away what the
        # client has not received yet.
        with contextlib.suppress(OSError):
            while peers.client.recv(65536):
                pass

    def _acts(self, peers: _Peers, ask: Callable[[], Reply | None]) -> bool:
        """Let the fault act; whether it did."""
        fault = self._fault
        with self._lock:
            if fault.is_over or peers.is_walsender != fault.is_walsender:
                return False
            reply = ask()
            if reply is None:
                return False
            fault.has_acted = True
        for each in reply:
            if isinstance(each, bytes):
                peers.client.sendall(each)
            else:
                self._act(peers, each)
        return True

    def _act(self, peers: _Peers, action: Action) -> None:
        if action is Action.SILENCE:
            self._ended.wait()
            raise EOFError
        if action is Action.RESET:
            linger_off = struct.pack("ii", 1, 0)
            peers.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
            peers.client.shutdown(socket.SHUT_RD)  # the other thread lets go of it
            peers.client.close()
        else:
            peers.client.shutdown(socket.SHUT_WR)
        peers.server.shutdown(socket.SHUT_RDWR)
        raise EOFError


def _read(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _read_startup(client: socket.socket) -> bytes:
    length = _read(client, 4)
    return length + _read(client, int.from_bytes(length) - 4)


def _messages(sock: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    with sock.makefile("rb") as stream:
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            tag, length = HEADER.unpack(header)
            yield tag, stream.read(length - 4)


# What a script says


def message(tag: bytes, body: bytes = b"") -> bytes:
    return HEADER.pack(tag, len(body) + 4) + body


def table(names: Sequence[str], *rows: Sequence[str | None]) -> bytes:
    """The answer to a command: rows of text."""
    columns = b"".join(
        name.encode() + b"\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0) for name in names
    )
    description = message(b"T", struct.pack(">H", len(names)) + columns)
    return description + b"".join(map(data_row, rows)) + done("SELECT")


def data_row(values: Sequence[str | None]) -> bytes:
    fields = b"".join(
        b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value.encode()
        for value in values
    )
    return message(b"D", struct.pack(">H", len(values)) + fields)


def done(tag: str) -> bytes:
    """The end of a command."""
    return message(b"C", tag.encode() + b"\0") + READY


def error(sqlstate: str, text: str, severity: str = "ERROR") -> bytes:
    fields = f"S{severity}\0V{severity}\0C{sqlstate}\0M{text}\0\0"
    return message(b"E", fields.encode())


READY = message(b"Z", b"I")
COPY_OUT = message(b"H", b"\0\0\0")
COPY_IN = message(b"G", b"\0\0\0")
COPY_BOTH = message(b"W", b"\0\0\0")
