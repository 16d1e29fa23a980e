"""A folder in an object store: S3 and compatible stores, Google Cloud Storage, Azure.

A name is created by a conditional write (``If-None-Match: *``, or the first generation), so only
one writer can create it. If an answer is lost, the client may repeat the request and then mistake
its own file for another writer's. So after *every* error of a create or a replacement, the name is
read. With our bytes, the write succeeded. With other bytes, another writer was first. Without a
file, the write is repeated. Therefore the content has to differ between writers, as commits do by
their UUID. Unless :class:`NameTaken` or :class:`Changed` is raised, a failed create may still take
effect later. A write is durable when it returns.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from pgsluice.failpoints import failpoint
from pgsluice.stores.addresses import Address, address_of
from pgsluice.stores.connections import Client, Place, client_of
from pgsluice.stores.contract import Changed, Folder, NameTaken, Span, Stored
from pgsluice.stores.errors import in_words
from pgsluice.stores.options import deltalake_options
from pgsluice.stores.ranged_files import RangedFile
from pgsluice.stores.uploads import PART_BYTES, Uploads, UploadStream

CACHED_FILE_BYTES = 4 << 20
"""Larger files, in bytes, are not cached."""
_CACHE_BYTES = 64 << 20
WHOLE_READ_BYTES = 16 << 20
"""Files up to this size, in bytes, are fetched as a whole when they are opened."""
_MERGED_GAP_BYTES = 1 << 20
"""Parts with a smaller distance, in bytes, are fetched by one request."""
_ATTEMPTS = 5
_ATTEMPTS_S = 240.0
_PAUSE_S = 0.2
_PART_CONCURRENCY = 3

_REFUSALS = (PermissionDeniedError, UnauthenticatedError)


class ByteCache:
    """The most recently used small unique files, up to a total size in bytes: they never change, so
    a process fetches each once."""

    def __init__(self) -> None:
        self._size = 0
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Any) -> Any:
        """The cached bytes of a key; None if they are not cached."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Any, data: Any) -> None:
        """Keep the bytes of a key, unless they are too large."""
        if len(data) > CACHED_FILE_BYTES:
            return
        with self._lock:
            self.drop(key)
            self._kept[key] = data
            self._size += len(data)
            while self._size > _CACHE_BYTES:
                self.drop(next(iter(self._kept)))

    def drop(self, key: Any) -> None:
        """Remove the bytes of a key, if they are cached."""
        with self._lock:
            if (found := self._kept.pop(key, None)) is not None:
                self._size -= len(found)


_uploads = Uploads()
CACHE = ByteCache()
"""The files that this process has read last."""


class RemoteFolder(Folder):
    """A folder below a prefix of a bucket, by the URL and options that the user wrote; picklable;
    opens its client when it is used. Raises ConfigError if the URL is not that of a known object
    store."""

    def __init__(self, url: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        self._url = url.rstrip("/")
        self._place = Place(address_of(url), tuple(sorted(options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFolder) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def uri(self) -> str:
        return self._url

    @property
    def path(self) -> Path | None:
        return None

    def storage_options(self) -> dict[str, str]:
        return deltalake_options(self._address.cloud, dict(self._place.options))

    def create(self, name: str, data: bytes) -> Hashable:
        def put(client: Client, key: str) -> Any:
            return client.put(key, data, mode="create", use_multipart=False)

        return self._put_once(name, data, put, None)

    def replace(self, name: str, data: bytes, tag: Hashable | None) -> Hashable:
        if tag is None:
            try:
                return self.create(name, data)
            except NameTaken as error:
                raise Changed(error.what) from None

        def put(client: Client, key: str) -> Any:
            version: Any = {"e_tag": f'"{tag}"'}
            if self._address.cloud == "gcs":  # its condition is a generation, which no listing has
                found = client.head(key)
                if _tag(found) != tag:
                    raise Changed(f"another writer has replaced {self._named(name)}")
                version = {"e_tag": found["e_tag"], "version": found["version"]}
            return client.put(key, data, mode=version, use_multipart=False)

        return self._put_once(name, data, put, tag)

    def write(self, name: str) -> UploadStream:
        def send(data: bytes | Iterator[bytes]) -> None:
            failpoint("store.upload")
            with in_words(self._address, "write to", name):
                self._client().put(
                    self._key(name),
                    data,
                    use_multipart=not isinstance(data, bytes),
                    chunk_size=PART_BYTES,
                    max_concurrency=_PART_CONCURRENCY,
                )
            if isinstance(data, bytes):
                CACHE.put((self._place, name), data)

        self._client()  # in a forked child there is nobody to send it: said before anything waits
        return UploadStream(_uploads, self._place, name, send)

    def settle(self, names: Iterable[str] = ()) -> None:
        _uploads.settle(self._place, names)

    def read(self, name: str) -> bytes:
        with in_words(self._address, "read from", name):
            return bytes(self._client().get(self._key(name)).bytes())

    def open(self, name: str, size: int | None = None) -> Any:
        _uploads.await_one(self._place, name)
        if (kept := CACHE.get((self._place, name))) is not None:
            return pa.BufferReader(kept)
        if size is None or size <= WHOLE_READ_BYTES:
            with in_words(self._address, "read from", name):
                found = self._client().get(self._key(name))
                size = found.meta["size"]
                if size <= WHOLE_READ_BYTES:
                    data = pa.py_buffer(found.bytes())
                    if size <= CACHED_FILE_BYTES:
                        CACHE.put((self._place, name), data.to_pybytes())
                    return pa.BufferReader(data)
        return pa.PythonFile(RangedFile(lambda *span: self._fetch(name, *span), size), mode="r")

    def read_spans(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        _uploads.await_one(self._place, name)
        if (kept := CACHE.get((self._place, name))) is not None:
            return [kept[start : start + length] for start, length in spans]
        found: dict[Span, bytes] = {}
        missing = []
        for span in spans:
            part = CACHE.get((self._place, name, span))
            if part is None:
                missing.append(span)
            else:
                found[span] = part
        for merged, members in _merged(missing):
            data = self._fetch(name, *merged)
            for span in members:
                begin = span.start - merged.start
                found[span] = data[begin : begin + span.length]
                CACHE.put((self._place, name, span), found[span])
        return [found[span] for span in spans]

    def entries(self, under: str = "", after: str = "") -> list[Stored]:
        if after > under:
            return [each for each in self.tree(under, after) if "/" not in each.name[len(under) :]]
        with in_words(self._address, "list"):
            found = self._client().list_with_delimiter(self._key(under))["objects"]
        return self._sorted(found, under, after)

    def tree(self, under: str = "", after: str = "") -> list[Stored]:
        offset = self._key(after) if after > under else None
        with in_words(self._address, "list"):
            pages: Any = self._client().list(self._key(under), offset=offset, chunk_size=1000)
            found = [meta for page in pages for meta in page]
        return self._sorted(found, under, after)

    def _sorted(self, found: Iterable[Any], under: str, after: str) -> list[Stored]:
        """The files of a listing; some stores ignore the offset, so the names are compared."""
        folder, start = self._key(under), len(self._address.prefix)
        named = sorted(
            (self._stored(meta["path"][start:], meta) for meta in found if meta["path"] != folder),
            key=lambda stored: stored.name,
        )
        return [each for each in named if each.name.startswith(under) and each.name > after]

    def stat(self, name: str) -> Stored | None:
        try:
            with in_words(self._address, "read from", name):
                return self._stored(name, self._client().head(self._key(name)))
        except FileNotFoundError:
            return None

    def delete(self, *names: str) -> None:
        for name in names:
            _uploads.await_one(self._place, name, forget=True)
            CACHE.drop((self._place, name))
        if not names:
            return
        client = self._client()
        keys = [self._key(name) for name in names]
        try:
            client.delete(keys)
            return
        except (BaseError, FileNotFoundError):
            # One is not there, and some stores then leave the others where they are; or the answer
            # was lost, and the client repeats a request for many names only if it was refused.
            pass
        for key in keys:
            with suppress(FileNotFoundError), in_words(self._address, "delete from"):
                client.delete(key)

    @property
    def _address(self) -> Address:
        return self._place.address

    def _client(self) -> Client:
        return client_of(self._place)

    def _key(self, name: str) -> str:
        return f"{self._address.prefix}{name}"

    def _named(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _stored(self, name: str, meta: Any) -> Stored:
        return Stored(name, meta["size"], meta["last_modified"].timestamp(), _tag(meta))

    def _fetch(self, name: str, start: int, length: int) -> bytes:
        """A part of a file; shorter or empty at the file's end."""
        with in_words(self._address, "read from", name):
            try:
                return bytes(self._client().get_range(self._key(name), start=start, length=length))
            except BaseError as error:
                if "416" not in str(error) and "InvalidRange" not in str(error):
                    raise
                return b""

    def _put_once(
        self, name: str, data: bytes, put: Callable[[Client, str], Any], replaced: Hashable | None
    ) -> Hashable:
        """Put a named file; after any error, read the name. ``replaced``: the tag to replace; None:
        no file."""
        client, key = self._client(), self._key(name)
        deadline = time.monotonic() + _ATTEMPTS_S
        for attempt in range(_ATTEMPTS):
            failpoint("store.put")
            try:
                return _tag(put(client, key))
            except (BaseError, FileNotFoundError) as error:
                failed = error
            found = self._content(client, key, name)
            if found is not None and found[0] == data:
                return found[1]
            if found is not None and found[1] != replaced:
                if replaced is None:
                    raise NameTaken(f"another writer has created {self._named(name)}")
                raise Changed(f"another writer has replaced {self._named(name)}")
            if found is None and replaced is not None:
                raise Changed(f"{self._named(name)} is not there any more")
            if time.monotonic() > deadline or isinstance(failed, _REFUSALS):
                break
            time.sleep(_PAUSE_S * 2**attempt)
        with in_words(self._address, "write to", name):
            raise BaseError(f"{type(failed).__name__}: {failed}")

    def _content(self, client: Client, key: str, name: str) -> tuple[bytes, Hashable] | None:
        """The bytes and the tag of a name; None if there is no such file."""
        try:
            with in_words(self._address, "read from", name):
                found = client.get(key)
                return bytes(found.bytes()), _tag(found.meta)
        except FileNotFoundError:
            return None


def _tag(meta: Any) -> str:
    # Listings of some stores have it without quotes.
    return str(meta["e_tag"]).strip('"')


def _merged(spans: Sequence[Span]) -> list[tuple[Span, list[Span]]]:
    """Neighbouring parts combined, each with its members."""
    merged: list[tuple[Span, list[Span]]] = []
    for span in sorted(set(spans)):
        if merged:
            last, members = merged[-1]
            end = last.start + last.length
            if span.start <= end + _MERGED_GAP_BYTES:
                length = max(end, span.start + span.length) - last.start
                merged[-1] = Span(last.start, length), [*members, span]
                continue
        merged.append((span, [span]))
    return merged
