"""Deletion vectors: the row numbers of deleted rows in a data file.

A vector is a set of row numbers. The log has a descriptor with the place of its bytes; all vectors
of one commit share a file. Our files are in the table's folder ``_dv``, because deltalake's vacuum
deletes files of vectors elsewhere, even those in use. A descriptor may also contain the bytes. We
read such descriptors, but do not write them: VACUUM of Delta's jar fails on them.

Source: the Delta protocol, "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from pgsluice.errors import PgsluiceError
from pgsluice.failpoints import failpoint
from pgsluice.sinks.lake.attempt import writes
from pgsluice.sinks.lake.vectors import FRAME_BYTES, blob, decoded, decoded_blob, encoded
from pgsluice.stores.contract import Folder, Span
from pgsluice.stores.places import local_path

FOLDER = "_dv"
"""The folder of our vectors inside the table's folder."""

_DIGITS = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    np.uint8,
)
_POWERS = 85 ** np.arange(4, -1, -1)
_VALUES: npt.NDArray[np.int64] = np.full(256, -1)
_VALUES[_DIGITS] = np.arange(85)
_UUID_DIGITS = 20
"""The length of a UUID in base 85, in characters."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The place of a vector's bytes, as in the log.

    Attributes:
        storage: ``u``: in a file whose name is a UUID; ``p``: in a file with an absolute path;
            ``i``: in the descriptor itself.
        path: the file's name, or the bytes; base 85 for ``u`` and ``i``.
        offset: where the vector starts in its file, in bytes.
        size: the size of the vector in bytes.
        cardinality: the number of deleted rows.
    """

    storage: str
    path: str
    offset: int | None
    size: int
    cardinality: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Descriptor:
        """The descriptor of an ``add`` or ``remove`` action."""
        return cls(
            value["storageType"],
            value["pathOrInlineDv"],
            value.get("offset"),
            value["sizeInBytes"],
            value["cardinality"],
        )

    def as_json(self) -> dict[str, Any]:
        """The descriptor as the ``deletionVector`` of an action in Delta's log."""
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.path,
            **offset,
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }

    def name(self, folder: Folder) -> str | None:
        """The path of the vector's file inside the table's folder; None: it is elsewhere, or the
        vector is in its descriptor.
        """
        if self.storage == "u":
            prefix, name = self.path[:-_UUID_DIGITS], self.path[-_UUID_DIGITS:]
            return "/".join(
                [*([prefix] if prefix else []), _file_name(uuid.UUID(bytes=from_base85(name)))]
            )
        return _inside(self.path, folder) if self.storage == "p" else None

    def place(self, folder: Folder) -> tuple[str, Span] | None:
        """The vector's file and the part of it that the vector takes; None if it has no file."""
        name = self.name(folder)
        span = Span(self.offset or 0, self.size + FRAME_BYTES)
        return None if name is None else (name, span)

    def read(self, folder: Folder) -> BitMap:
        """The deleted rows of the data file.

        Raises:
            PgsluiceError: the vector cannot be read, or is damaged.
        """
        name = "_delta_log"  # an inline vector is in a file there
        try:
            if self.storage == "i":
                return decoded(from_base85(self.path)[: self.size])
            if (place := self.place(folder)) is None:
                raise ValueError("it is outside of the table's folder")
            name, span = place
            (stored,) = folder.read_spans(name, [span])
            return decoded_blob(stored, self.size)
        except (OSError, ValueError, struct.error) as error:
            raise PgsluiceError(
                f"a deletion vector of the Delta table in {folder.uri}, in {name}, cannot be read: "
                f"{error}",
                hint=f"restore {name} from a backup, or copy the table again: `pgsluice copy "
                "CONFIG TABLE`",
                location=folder.uri,
            ) from error


def _inside(uri: str, folder: Folder) -> str | None:
    """The name of a file inside a folder; None: it is elsewhere."""
    path = local_path(uri)
    file = uri if path is None else str(path)
    name = file.removeprefix(f"{folder.uri.rstrip('/')}/")
    return name if name != file else None


def write_vectors(folder: Folder, vectors: Sequence[BitMap]) -> tuple[list[Descriptor], int]:
    """Write the vectors of one commit, none of them empty, to one file; returns their descriptors
    in the same order, and their size in bytes."""
    if not vectors:
        return [], 0
    name = uuid.uuid4()
    place = FOLDER + to_base85(name.bytes)
    data = bytearray(b"\x01")
    descriptors = []
    for vector in vectors:
        rows = encoded(vector)
        descriptors.append(Descriptor("u", place, len(data), len(rows), len(vector)))
        data += blob(rows)
    path = f"{FOLDER}/{_file_name(name)}"
    writes(partial(folder.delete, path))
    with folder.write(path) as stream:
        stream.write(data)
    failpoint("delta.written")
    return descriptors, len(data)


def _file_name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def to_base85(data: bytes) -> str:
    """Encode bytes in Z85: 5 digits for each 4 bytes."""
    numbers = np.frombuffer(data, ">u4").astype(np.int64)
    digits: bytes = _DIGITS[numbers[:, np.newaxis] // _POWERS % 85].tobytes()
    return digits.decode("ascii")


def from_base85(text: str) -> bytes:
    """Decode Z85 digits to bytes.

    Raises:
        ValueError: the text is not base 85.
    """
    values = _VALUES[np.frombuffer(text.encode("latin-1"), np.uint8)].reshape(-1, 5)
    numbers = values @ _POWERS
    if values.min(initial=0) < 0 or numbers.max(initial=0) >= 2**32:
        raise ValueError("it is no text in base 85")
    return numbers.astype(">u4").tobytes()
