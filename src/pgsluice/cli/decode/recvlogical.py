"""Reads the output of ``pg_recvlogical``: messages as received, each followed by a newline.

Messages are binary and can contain newlines, so each has to be decoded to find its end.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from pgsluice.cli.decode.follow import Follower, Raw, Seen, input_error
from pgsluice.errors import ProtocolError

_ENOUGH = 1 << 16
_DOUBLE_FROM = 1 << 20


def read_recvlogical(where: str, stream: io.BufferedReader, follower: Follower) -> Iterator[Seen]:
    """The messages of the output, each as soon as it is complete.

    Raises:
        ProtocolError: there are other bytes, or the last message is incomplete.
    """
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
    """The bytes of a stream that were read but not yet consumed.

    Attributes:
        offset: the offset of the first of them in the stream.
    """

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
