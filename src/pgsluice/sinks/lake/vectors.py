"""The deleted rows of a data file: a set of row numbers.

In a table, a set is stored in a file; each format has its own kind of reference to it. During a
merge, it is in memory (:class:`DeadRows`).

Source: the Delta protocol, "Deletion Vector Format"; the blob ``deletion-vector-v1`` of Iceberg's
Puffin files is the same.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Protocol

from pyroaring import BitMap

from pgsluice.stores.contract import Folder, Span

FRAME_BYTES = 8
"""The bytes of a blob in addition to the set: its size before it, and a checksum after it."""
_MAGIC = struct.pack("<I", 1681511377)


class Vector(Protocol):
    """The deleted rows of a data file: a set of row numbers, or a reference to one in a file."""

    @property
    def cardinality(self) -> int:
        """The number of deleted rows."""

    def name(self, folder: Folder) -> str | None:
        """The path of the set's file inside the table's folder; None if there is none."""

    def place(self, folder: Folder) -> tuple[str, Span] | None:
        """The file with the set inside of the table's folder, and which part of it; None: there is
        none."""

    def read(self, folder: Folder) -> BitMap:
        """The row numbers.

        Raises:
            PgsluiceError: the set cannot be read, or is damaged.
        """


@dataclass(frozen=True, slots=True)
class DeadRows:
    """A set in memory, which is not in a file yet, and is never changed."""

    rows: BitMap

    @property
    def cardinality(self) -> int:
        """The number of deleted rows."""
        return len(self.rows)

    def name(self, folder: Folder) -> None:
        """None: these rows are in memory only, in no file."""

    def place(self, folder: Folder) -> None:
        """None: these rows are in memory only, in no file."""

    def read(self, folder: Folder) -> BitMap:
        """The numbers of the deleted rows; ``folder`` is not used."""
        return self.rows


def encoded(rows: BitMap) -> bytes:
    """Encode a set as a RoaringBitmapArray with one bitmap, in the portable form."""
    rows.run_optimize()
    return _MAGIC + struct.pack("<QI", 1, 0) + rows.serialize()


def blob(data: bytes) -> bytes:
    """An encoded set with its size and its checksum, as in a file."""
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def decoded_blob(stored: bytes, size: int) -> BitMap:
    """Decode the set in these bytes, which has so many bytes when it is encoded.

    Raises:
        ValueError, struct.error: there is no set, or it is damaged.
    """
    data = stored[4:-4]
    (stated,) = struct.unpack_from(">i", stored)
    (checksum,) = struct.unpack(">I", stored[-4:])
    if stated != size or checksum != zlib.crc32(data):
        raise ValueError("its size or its checksum is wrong")
    return decoded(data)


def decoded(data: bytes) -> BitMap:
    """Decode the set that is encoded as these bytes.

    Raises:
        ValueError, struct.error: the bytes are not such a set.
    """
    if data[:4] != _MAGIC:
        raise ValueError("it is no RoaringBitmapArray in the portable form")
    (count,) = struct.unpack_from("<Q", data, 4)
    if count == 0:
        return BitMap()
    (high,) = struct.unpack_from("<I", data, 12)
    if count > 1 or high != 0:
        raise ValueError("it has row numbers of more than 32 bits")
    return BitMap.deserialize(data[16:])
