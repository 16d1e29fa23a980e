"""Messages as ``pg_recvlogical`` writes them: each as it came, then a newline.

The messages are binary and hold newlines themselves: where one ends, only decoding tells.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from pgsluice.cli.decode.follow import Follower, Raw, Seen, wrong_input
from pgsluice.errors import ProtocolError

_ENOUGH = 1 << 16
_DOUBLE_FROM = 1 << 20


def read_recvlogical(where: str, stream: io.BufferedReader, follower: Follower) -> Iterator[Seen]:
    """The messages of pg_recvlogical's output, each as soon as it has come.

    Args:
        where: the input, for errors.
        stream: the output.
        follower: decodes them.

    Raises:
        ProtocolError: there are other bytes, or the last message is cut short.
    """
    window = _Window(stream)
    while window.data or window.more():
        size = _first_size(where, window, follower)
        yield follower.take(Raw(window.data[:size], window.offset, 1, where))
        if len(window.data) == size and not window.more():
            return  # pg_recvlogical was stopped between the message and its newline
        if window.data[size] != ord("\n"):
            what = "expected the newline that pg_recvlogical writes after each message"
            raise wrong_input(where, window.offset + size, None, what)
        window.skip(size + 1)


def _first_size(where: str, window: _Window, follower: Follower) -> int:
    """The next message's size, waiting for no more bytes than the message needs."""
    before: object = None
    while True:
        try:
            return follower.first(window.data)
        except ProtocolError as error:
            at, expected = error.facts["offset"], error.facts["expected"]
            # More bytes may complete the message. Where many change nothing it is wrong.
            is_wrong = at == 0 or (before == (at, expected) and len(window.data) - at > _ENOUGH)
            if is_wrong or not window.more():
                raise Raw(b"", window.offset, 1, where).wrong(error) from None
            before = (at, expected)


class _Window:
    """What is read of a stream but not done with.

    Attributes:
        data: the bytes.
        offset: where they begin in the stream.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.data = b""
        self.offset = 0

    def more(self) -> bool:
        """Read on; False at the stream's end.

        A pipe gives what it has. Of a large message it is asked for twice as much, so that
        looking again and again costs no more than reading.
        """
        least = len(self.data) if len(self.data) >= _DOUBLE_FROM else 0
        new = self._stream.read(least) if least else self._stream.read1(_ENOUGH)
        self.data += new
        return bool(new)

    def skip(self, size: int) -> None:
        """Be done with bytes."""
        self.data = self.data[size:]
        self.offset += size
