"""The file of a subscription's record: any process reads it, the subscription's owner writes it.

``record.json`` has one line for each save (:mod:`pgsluice.spool.records.codec`), so a save writes
only what changed. When the lines after the first are larger than the first, the next save
replaces the file, by a rename, with one that has a single line.

Readers need no lock, and see only durable records:

* A save appends the line, fsyncs it, and then appends the newline. Readers ignore a last line
  without a newline. When the owner opens the file, it accepts such a line if it is complete.
* If a crash or a full disk left a truncated line, the owner replaces the file when it opens the
  file or saves the next record.
* Lines never change, so a reader that has read the file before reads only the new lines.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from pgsluice.errors import SpoolError
from pgsluice.failpoints import failpoint
from pgsluice.spool.formats import check_format, decode_json, encode_json, missing
from pgsluice.spool.identity import spool_id_of
from pgsluice.spool.layout import REGISTERED, record_path
from pgsluice.spool.records.codec import NOT_A_RECORD, RECORD_FORMAT, RecordBuilder, encode_change
from pgsluice.spool.records.record import SubscriptionRecord
from pgsluice.spool.storage import LocalStorage, spool_error

_HEAD_BYTES = 39
"""The length of the format and a random name at the start of each file's first line."""
_SMALL_BYTES = 64 * 1024
"""The file is not replaced while its later lines are smaller than this, in bytes."""


@dataclass(slots=True)
class _Content:
    """The part of a file that was read: its head, its first line's length, and that of all complete
    lines."""

    builder: RecordBuilder = field(default_factory=RecordBuilder)
    head: bytes = b""
    first_bytes: int = 0
    whole_bytes: int = 0


class RecordFileReader:
    """Reads a subscription's record repeatedly; skips an unchanged file. Raises SpoolError if the
    name cannot be a subscription's.

    Args:
        is_owner: accept a complete last line without a newline: only the owner knows that no
            process is writing the line.

    Attributes:
        content: the part of the file that was read; None without a file.
    """

    def __init__(self, spool_path: Path, name: str, *, is_owner: bool = False) -> None:
        self.path = record_path(spool_path, name)
        self.content: _Content | None = None
        self._spool_path = spool_path
        self._name = name
        self._is_owner = is_owner
        self._status: tuple[int, int, int] | None = None
        self._record: SubscriptionRecord | None = None

    def read(self) -> SubscriptionRecord | None:
        """The last saved record, the same object if it has not changed; None before the
        subscription registered. Raises ForeignSpool if this version does not read the file's
        format, and SpoolError if the file cannot be read, or is damaged."""
        for is_last in (False, True):
            try:
                with self.path.open("rb", buffering=0) as file:
                    status = os.fstat(file.fileno())
                    seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                    if seen != self._status:
                        self._record = self._read(file)
                        self._status = seen
                    return self._record
            except FileNotFoundError:
                if not any((self.path.parent / name).exists() for name in REGISTERED):
                    break
                # It may have registered since we looked: then its record is there now.
                if is_last:
                    raise missing(str(self.path)) from None
            except OSError as error:
                raise spool_error(error, self.path) from error
        self._status = self.content = self._record = None
        return None

    def _read(self, file: FileIO) -> SubscriptionRecord:
        content, self.content = self.content, None
        if content is None or file.read(_HEAD_BYTES) != content.head:
            content = _Content()
        file.seek(content.whole_bytes)
        data = file.readall()
        try:
            *lines, unfinished = data.split(b"\n")
            for line in lines:
                self._apply(content, line)
            if self._is_owner and (change := decode_json(unfinished)) is not None:
                content.builder.apply(change)
            if unfinished[-1:] != b"\0" and decode_json(unfinished[:-1]) is not None:
                raise ValueError("the newline of the last line is damaged")
            record = content.builder.build()
        except NOT_A_RECORD as error:
            raise self._refused("is not a subscription's record, or it is damaged") from error
        if record.name != self._name:
            raise self._refused(f"is the record of the subscription {record.name}")
        self.content = content
        return record

    def _refused(self, why: str) -> SpoolError:
        return SpoolError(
            f"{self.path} {why}",
            hint="restore the file; without it, `pgsluice drop CONFIG --subscription "
            f"{self._name}` and start again: its tables are copied again",
            path=str(self.path),
        )

    def _apply(self, content: _Content, line: bytes) -> None:
        change = decode_json(line)
        if change is None:
            raise ValueError("the checksum of a line is wrong")
        size = len(line) + 1
        if not content.whole_bytes:
            written_format, path = change.pop("format"), str(self.path)
            check_format(written_format, path, oldest=RECORD_FORMAT - 1, newest=RECORD_FORMAT)
            content.builder = RecordBuilder(written_format)
            del change["file"]
            self._check_spool(change.pop("spool_id"))
            content.head = line[:_HEAD_BYTES]
            content.first_bytes = size
        content.builder.apply(change)
        content.whole_bytes += size

    def _check_spool(self, spool_id: str | None) -> None:
        own = spool_id_of(self._spool_path)
        if None not in (spool_id, own) and spool_id != own:
            raise self._refused(f"is a record of the spool {spool_id}, not of {own}")


class RecordFile:
    """Writes a subscription's record file; only its owner may use it."""

    def __init__(self, spool_path: Path, name: str) -> None:
        self._spool_path = spool_path
        self._path = record_path(spool_path, name)
        self._first_bytes = 0
        self._status: tuple[int, int] | None = None
        """Inode and size of the file if a line may be appended; None: the file has to be
        replaced."""

    def open(self) -> SubscriptionRecord | None:
        """Read the record. A save that a crash interrupted is completed if its line is complete,
        else removed."""
        reader = RecordFileReader(self._spool_path, self._path.parent.name, is_owner=True)
        record = reader.read()
        if record is not None and reader.content is not None:
            status = reader.path.stat()
            self._first_bytes = reader.content.first_bytes
            if reader.content.builder.written_format == RECORD_FORMAT:
                self._status = (status.st_ino, status.st_size)
            if status.st_size > reader.content.whole_bytes:
                self.replace(record)
        return record

    def save(self, before: SubscriptionRecord, record: SubscriptionRecord) -> None:
        """Make a record durable by appending what changed since the last save; raises SpoolError if
        that fails, and readers see the previous record."""
        change = encode_change(before, record)
        if change and not self._append(encode_json(change)):
            self.replace(record)

    def _append(self, line: bytes) -> bool:
        """Append a line durably; False if the file has to be replaced instead."""
        status, self._status = self._status, None
        if status is None:
            return False
        inode, size = status
        if size - self._first_bytes + len(line) > max(self._first_bytes, _SMALL_BYTES):
            return False
        try:
            with self._path.open("r+b") as file:
                opened = os.fstat(file.fileno())
                if (opened.st_ino, opened.st_size) != status:
                    return False
                file.seek(size)
                failpoint("record.write")
                file.write(line)
                file.flush()
                failpoint("record.before_fsync")
                os.fsync(file.fileno())
                failpoint("record.before_newline")
                file.write(b"\n")
                file.flush()
                failpoint("record.after_newline")
        except OSError as error:
            raise spool_error(error, self._path) from error
        self._status = (inode, size + len(line) + 1)
        return True

    def replace(self, record: SubscriptionRecord) -> None:
        """Replace the record's file with one that has a single line, the whole record."""
        self._status = None
        first = {
            "format": RECORD_FORMAT,
            "file": secrets.token_hex(8),
            "spool_id": spool_id_of(self._spool_path),
        }
        line = encode_json({**first, **encode_change(None, record)}) + b"\n"
        LocalStorage(self._path.parent).replace(self._path.name, line)
        (self._path.parent / REGISTERED[0]).touch(mode=0o600)  # so that a lost record is noticed
        self._first_bytes = len(line)
        self._status = (self._path.stat().st_ino, len(line))
