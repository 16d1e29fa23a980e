"""A large file of a store for random access by Arrow and Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable

_LEAST_BYTES = 1 << 20
"""The minimum size of a request in bytes, so that following small reads need no request."""


class RangedFile(io.RawIOBase):
    """Reads a file of this size, in bytes, by fetching parts, each by its start and length: the
    requested bytes, and some bytes after them."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0
        self._start = 0
        self._ahead: bytes | memoryview = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._size - self._at)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        if not self._start <= self._at <= self._at + length <= self._start + len(self._ahead):
            data = self._fetch(self._at, min(max(length, _LEAST_BYTES), rest))
            if length >= _LEAST_BYTES:
                self._at += len(data)
                return data
            self._start, self._ahead = self._at, data
        begin = self._at - self._start
        self._at += length
        return bytes(self._ahead[begin : begin + length])
