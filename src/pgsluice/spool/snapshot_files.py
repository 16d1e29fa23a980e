"""The rows that a stream of the Spark source starts with: files that exist until they are
delivered.

Spark repeats a batch after a crash, but the snapshot is gone then, and its rows cannot be read
again. So tasks first write the rows to these files, and batches read them from there. Each attempt
has its own files, ``<attempt>-<number>-<random>.arrow``: a stream of Arrow batches, followed by
JSON with its checksum, and the length of that JSON. The plan of an attempt is durable before its
first task, so that another process can complete it. When all files are durable, ``complete.json``
is written with their names; without it, they are ignored.
"""

from __future__ import annotations

import io
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool.formats import FORMAT, checksum, damaged, decode_file, decode_json, encode_json
from pgsluice.spool.layout import (
    SNAPSHOT_ATTEMPT,
    SNAPSHOT_COMPLETE,
    SNAPSHOT_ROWS,
    subscription_folder,
)
from pgsluice.spool.storage import LocalStorage, make_folder

_LENGTH_BYTES = 4
_BEGIN_ANEW = (
    "restore the file; without it, empty what the query has written, and start it with another "
    "checkpointLocation"
)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows, with its number of rows."""

    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """The plan of an attempt to write all rows of a snapshot.

    Attributes:
        name: the start of its files' names.
        position, timeline: those of the snapshot.
        chunks: the number of its files.
        content: a digest of what the rows depend on, such as the query's columns.
    """

    name: str
    position: Lsn
    timeline: int
    chunks: int
    content: str


@dataclass(frozen=True, slots=True)
class CompleteSnapshot:
    """All rows of a snapshot: its position, and the files in the order of delivery."""

    position: Lsn
    files: tuple[RowFile, ...]


class SnapshotFiles:
    """The files of one subscription; picklable.

    ``registration`` is that of the subscription: files of another one are ignored. A damaged file
    raises SpoolError.
    """

    def __init__(self, spool: Path, subscription: str) -> None:
        self.folder = subscription_folder(spool, subscription) / SNAPSHOT_ROWS

    def begin(self) -> None:
        """Delete the files of an earlier attempt before a new one."""
        self.clear()
        make_folder(self.folder)

    def note(self, attempt: Attempt, registration: str) -> None:
        """Record the plan of an attempt durably, before its first task."""
        raw = {**asdict(attempt), "position": str(attempt.position)}
        self._write(SNAPSHOT_ATTEMPT, registration, raw)

    def attempt(self, registration: str) -> Attempt | None:
        """The plan of the last attempt, also of an earlier process; None if there is none."""
        hint = f"delete the folder {self.folder}: the query then reads the rows again"
        raw = self._read(SNAPSHOT_ATTEMPT, registration, hint)
        if raw is None:
            return None
        return Attempt(
            str(raw["name"]),
            Lsn.parse(raw["position"]),
            int(raw["timeline"]),
            int(raw["chunks"]),
            str(raw["content"]),
        )

    def clear(self) -> None:
        """Delete all files of the snapshot's rows."""
        if self.folder.is_dir():
            # First, since the others count for nothing without it.
            (self.folder / SNAPSHOT_COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(self.folder)

    def write(
        self, attempt: str, number: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> None:
        """Write the rows of one chunk durably; called in a task.

        If the folder is gone, a newer attempt has started, and nothing is written.
        """
        if not self.folder.is_dir():
            return
        name = f"{attempt}-{number:06d}-{secrets.token_hex(4)}.arrow"
        LocalStorage(self.folder).put(name, lambda file: _fill(file, batches, schema))

    def written(self, attempt: str) -> dict[int, RowFile]:
        """The files of an attempt, by the chunk's number. If two tasks wrote the same chunk, their
        rows are the same, and the first by name is used."""
        files: dict[int, RowFile] = {}
        for path in sorted(self.folder.glob(f"{attempt}-*.arrow")):
            number = int(path.name.split("-")[1])
            if number not in files:
                with pa.memory_map(str(path)) as file:
                    rows, size_bytes, _ = _trailer(memoryview(file.read_buffer()), path)
                files[number] = RowFile(path.name, rows, size_bytes)
        return files

    def finish(self, snapshot: CompleteSnapshot, registration: str) -> None:
        """Record durably that these files have all rows of the snapshot."""
        raw = {
            "position": str(snapshot.position),
            "files": [[file.name, file.rows, file.size_bytes] for file in snapshot.files],
        }
        self._write(SNAPSHOT_COMPLETE, registration, raw)

    def complete(self, registration: str) -> CompleteSnapshot | None:
        """The snapshot's files, if all of them are written; else None."""
        raw = self._read(SNAPSHOT_COMPLETE, registration, _BEGIN_ANEW)
        if raw is None:
            return None
        files = tuple(RowFile(str(name), int(rows), int(size)) for name, rows, size in raw["files"])
        return CompleteSnapshot(Lsn.parse(raw["position"]), files)

    def read(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of a file; called in a task. Raises SpoolError if the file is missing or
        damaged, or if its rows have another schema."""
        path = self.folder / name
        try:
            with pa.memory_map(str(path)) as source:
                data = source.read_buffer()
        except OSError as error:
            raise SpoolError(
                f"the rows that the query begins with cannot be read from {path}: "
                f"{error.strerror or error}",
                hint=_BEGIN_ANEW,
                path=str(path),
            ) from error
        _, size_bytes, crc = _trailer(memoryview(data), path)
        body = data.slice(0, size_bytes)
        if checksum(memoryview(body)) != crc:
            raise damaged(str(path), "the checksum is wrong", _BEGIN_ANEW)
        reader = pa.ipc.open_stream(body)
        if reader.schema != schema:
            raise SpoolError(
                f"the rows in the file {path} have other columns or types than the query",
                hint="start the query with its previous options and the table's previous columns, "
                "or with another checkpointLocation",
                path=str(path),
            )
        yield from reader

    def _write(self, name: str, registration: str, content: Mapping[str, Any]) -> None:
        raw = {"format": FORMAT, "file": name, "registration": registration, **content}
        LocalStorage(self.folder).replace(name, encode_json(raw))

    def _read(self, name: str, registration: str, hint: str) -> dict[str, Any] | None:
        """A JSON file; None if it is missing or of another registration."""
        data = LocalStorage(self.folder).read(name)
        if data is None:
            return None
        raw = decode_file(data, str(self.folder / name), hint)
        return raw if raw.get("registration") == registration else None


class _Summed(io.RawIOBase):
    """A file that counts the bytes written to it, and computes their checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # the types of buffers have no common name before 3.12
        view = memoryview(data)
        self._file.write(view)
        self.size_bytes += len(view)
        self.crc = checksum(view, self.crc)
        return len(view)


def _fill(file: BinaryIO, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    summed, rows = _Summed(file), 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.PythonFile(summed, mode="w") as sink,
        pa.ipc.new_stream(sink, schema, options=options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    trailer = encode_json({"rows": rows, "bytes": summed.size_bytes, "rows_crc32": summed.crc})
    file.write(trailer + len(trailer).to_bytes(_LENGTH_BYTES))


def _trailer(data: memoryview, path: Path) -> tuple[int, int, int]:
    """The number of rows, their bytes and their checksum, as the JSON at a file's end has them."""
    length = int.from_bytes(data[-_LENGTH_BYTES:])
    raw = decode_json(bytes(data[-length - _LENGTH_BYTES : -_LENGTH_BYTES]))
    if raw is None:
        raise damaged(str(path), "its end is not that of a file of rows", _BEGIN_ANEW)
    return int(raw["rows"]), int(raw["bytes"]), int(raw["rows_crc32"])
