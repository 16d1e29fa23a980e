"""Opens the input, and detects its format by its first bytes.

=========== =========================================================================
segment     begins with ``ARROW1``: any file of a spool. The parts of a reference are
            read from the same spool
recvlogical has a NUL among its first bytes, unlike text: the output of
            ``pg_recvlogical``, with a newline after each message. Messages can contain
            newlines, so each has to be decoded to find its end
hex         anything else: psql's output of pg_logical_slot_peek_binary_changes in any
            format, or bare hexadecimal, one message on each line
=========== =========================================================================
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgsluice.cli.decode import InputFormat
from pgsluice.cli.decode.follow import Follower, Raw, Seen, input_error
from pgsluice.cli.decode.hexadecimal import read_hex
from pgsluice.cli.decode.segments import read_segments
from pgsluice.errors import ConfigError, ProtocolError

_ARROW = b"ARROW1"
_HEAD = 4096
_ENOUGH = 1 << 16
_DOUBLE_FROM = 1 << 20


@contextmanager
def open_input(file: Path) -> Iterator[io.BufferedReader]:
    """Open a file, or stdin for ``-``.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if str(file) == "-":
        with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
            yield stream
        return
    try:
        stream = file.open("rb")
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a folder, not a file",
            hint="give the path of a file; in a spool's folder, one of segments/…/*.arrow",
        ) from None
    except OSError as error:
        raise ConfigError(f"pgsluice cannot read the file {file}: {error.strerror}") from None
    with stream:
        yield stream


def messages_of(
    file: Path, stream: io.BufferedReader, kind: InputFormat, follower: Follower
) -> Iterator[Seen]:
    """The input's messages, decoded in their order.

    Raises:
        ProtocolError: the input does not have this format; names the byte.
        SpoolError: a file of a spool cannot be read.
    """
    path = None if str(file) == "-" else file
    title = str(path or "stdin")
    if kind is InputFormat.AUTO:
        head = stream.peek(_HEAD)[:_HEAD]
        is_text = InputFormat.RECVLOGICAL if b"\0" in head else InputFormat.HEX
        kind = InputFormat.SEGMENT if head.startswith(_ARROW) else is_text
    match kind:
        case InputFormat.SEGMENT:
            return read_segments(title, path, stream.read(), follower)
        case InputFormat.RECVLOGICAL:
            return _read_recvlogical(title, stream, follower)
        case _:
            return read_hex(title, stream, follower)


def _read_recvlogical(where: str, stream: io.BufferedReader, follower: Follower) -> Iterator[Seen]:
    """The messages in the output of ``pg_recvlogical``, each as soon as it is complete."""
    window = _Window(stream)
    while window.data or window.more():
        size = _first_size(where, window, follower)
        yield follower.take(Raw(window.data[:size], window.offset, 1, where))
        if len(window.data) == size and not window.more():
            return  # pg_recvlogical was stopped between the message and its newline
        if window.data[size] != ord("\n"):
            what = "expected the newline that pg_recvlogical writes after each message"
            raise input_error(where, window.offset + size, None, what)
        window.skip(size + 1)


def _first_size(where: str, window: _Window, follower: Follower) -> int:
    """The next message's size, without waiting for bytes beyond the message."""
    previous: object = None
    while True:
        try:
            return follower.first(window.data)
        except ProtocolError as error:
            place = (error.facts["offset"], error.facts["expected"])
            # More bytes may complete the message. If many do not, it is malformed.
            is_stuck = previous == place and len(window.data) - place[0] > _ENOUGH
            if place[0] == 0 or is_stuck or not window.more():
                raise Raw(b"", window.offset, 1, where).locate(error) from None
            previous = place


class _Window:
    """The bytes of a stream that were read but not yet consumed, from an offset on."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.data = b""
        self.offset = 0

    def more(self) -> bool:
        """Read more; False at the end of the stream.

        A read returns what is available. For a large message, each read doubles the data, so
        that decoding it again after each read stays linear.
        """
        least = len(self.data) if len(self.data) >= _DOUBLE_FROM else 0
        new = self._stream.read(least) if least else self._stream.read1(_ENOUGH)
        self.data += new
        return bool(new)

    def skip(self, size: int) -> None:
        """Consume bytes."""
        self.data = self.data[size:]
        self.offset += size
