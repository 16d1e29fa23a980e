"""Caches small unique files in this process's memory: they never change, so each is fetched
once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

FILE_BYTES = 4 << 20
"""Larger files, in bytes, are not cached."""
_ALL_BYTES = 64 << 20


class ByteCache:
    """The most recently used files, up to a total size in bytes."""

    def __init__(self, limit: int = _ALL_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """The bytes, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Any, data: Any) -> None:
        """Keep bytes, unless they are too large."""
        if len(data) > FILE_BYTES:
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = data
            self._size += len(data)
            while self._size > self._limit:
                self._drop(next(iter(self._kept)))

    def drop(self, key: Any) -> None:
        """Remove bytes."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Any) -> None:
        if (found := self._kept.pop(key, None)) is not None:
            self._size -= len(found)
