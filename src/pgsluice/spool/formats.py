"""Format numbers of the spool's files, and their JSON, which ends with its own checksum.

The checksum is CRC-32: zlib computes it at several GB/s, and without the GIL. It finds damage by
disks, copies and editors; it does not protect against people who mean to deceive.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.hints import COPY_ALL_AGAIN

FORMAT = 4
"""The format that is written. FORMAT and FORMAT - 1 are read.

3: files have checksums, their own name, and the id of their spool. 4: relation metadata has the
attribute numbers of dropped columns, and those of a leaf partition's columns in the tables above
it.
"""

RESTORE_FILE = f"restore the file from a backup; if there is none, {COPY_ALL_AGAIN}"
_CHECKSUM = b',"crc32":'


def checksum(block: memoryview | bytes, before: int = 0) -> int:
    """The CRC-32 of a block, continuing the checksum of the blocks before it."""
    return zlib.crc32(block, before)


def damaged(path: str, why: str, hint: str = RESTORE_FILE) -> SpoolError:
    """The error for a file whose content is not what was written."""
    return SpoolError(f"{path} is damaged: {why}", hint=hint, path=path)


def missing(path: str) -> SpoolError:
    """The error for a missing file of the spool's state, with what to do."""
    return SpoolError(f"the spool's file {path} is missing", hint=RESTORE_FILE, path=path)


def encode_json(raw: Mapping[str, Any]) -> bytes:
    """Encode one JSON object as a line without a newline; its last key is the checksum of the bytes
    before that key."""
    content = json.dumps(raw, separators=(",", ":")).encode()[:-1]
    return b"%s%s%d}" % (content, _CHECKSUM, checksum(content))


def decode_json(data: bytes) -> dict[str, Any] | None:
    """Decode what :func:`encode_json` wrote; None if it is truncated or its checksum is wrong."""
    content, separator, written = data.rpartition(_CHECKSUM)
    if not separator or written != b"%d}" % checksum(content):
        return None
    return dict(json.loads(content + b"}"))


def decode_file(data: bytes, path: str, hint: str = RESTORE_FILE) -> dict[str, Any]:
    """Decode a JSON object with the key ``format``; raises ForeignSpool if that is neither this
    format nor the previous one, and SpoolError if the object is damaged."""
    raw = decode_json(data)
    if raw is None:
        if _CHECKSUM in data:
            raise damaged(path, "the checksum is wrong", hint)
        try:
            written_format = dict(json.loads(data)).get("format")
        except (ValueError, TypeError):
            raise damaged(path, "it is not a JSON object", hint) from None
        check_format(written_format, path)
        raise damaged(path, "it has no checksum", hint)
    check_format(raw.get("format"), path)
    return raw


def check_format(
    written_format: object, path: str, *, oldest: int = FORMAT - 1, newest: int = FORMAT
) -> None:
    """Raise ForeignSpool for a file of a format that this version does not read."""
    if not isinstance(written_format, int) or not oldest <= written_format <= newest:
        raise ForeignSpool(
            f"the file {path} has format {written_format}, but this version of pgsluice reads the "
            f"formats {oldest} to {newest}",
            hint="use the version of pgsluice that wrote the file, or a newer version",
            path=path,
            format=written_format,
        )
