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
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    from pgsluice.cli.decode.follow import Follower, Seen

_ARROW = b"ARROW1"
_HEAD = 4096


class InputFormat(StrEnum):
    """The format of the input."""

    AUTO = "auto"
    HEX = "hex"
    SEGMENT = "segment"
    RECVLOGICAL = "recvlogical"


@dataclass(frozen=True, slots=True)
class Input:
    """An opened input.

    Attributes:
        name: for errors.
        path: None for stdin.
    """

    name: str
    path: Path | None
    stream: io.BufferedReader


@contextmanager
def open_input(file: Path) -> Iterator[Input]:
    """Open a file, or stdin for ``-``.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if str(file) == "-":
        with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
            yield Input("stdin", None, stream)
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
        yield Input(str(file), file, stream)


def messages_of(source: Input, kind: InputFormat, follower: Follower) -> Iterator[Seen]:
    """The input's messages, decoded in their order.

    Raises:
        ProtocolError: the input does not have this format; names the byte.
        SpoolError: a file of a spool cannot be read.
    """
    if kind is InputFormat.AUTO:
        kind = _detect(source.stream.peek(_HEAD)[:_HEAD])
    match kind:
        case InputFormat.SEGMENT:
            from pgsluice.cli.decode.segments import read_segments

            return read_segments(source.name, source.path, source.stream.read(), follower)
        case InputFormat.RECVLOGICAL:
            from pgsluice.cli.decode.recvlogical import read_recvlogical

            return read_recvlogical(source.name, source.stream, follower)
        case _:
            from pgsluice.cli.decode.hexadecimal import read_hex

            return read_hex(source.name, source.stream, follower)


def _detect(head: bytes) -> InputFormat:
    if head.startswith(_ARROW):
        return InputFormat.SEGMENT
    return InputFormat.RECVLOGICAL if b"\0" in head else InputFormat.HEX
