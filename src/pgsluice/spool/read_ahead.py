"""Fetches objects of a store before they are asked for, several at a time.

A reader of a long chain would otherwise wait for one answer after the other: a backlog of minutes
would take as long again to catch up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

_AT_ONCE = 8
"""The maximum number of requests at a time."""
AHEAD_BYTES = 32 << 20
"""The maximum size, in bytes, of all objects that are fetched ahead."""
_REMEMBERED = 100_000
"""The number of names from which their order is forgotten."""


class ReadAhead:
    """The objects that are being fetched ahead; thread-safe.

    Args:
        fetch: returns the bytes of an object that begin at an offset.
        size: an object's size in bytes; None: unknown, and the object is not fetched ahead.
    """

    def __init__(
        self, fetch: Callable[[str, int], bytes], size: Callable[[str], int | None]
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._following: dict[str, str] = {}
        self._fetched: OrderedDict[tuple[str, int], tuple[int, Future[bytes]]] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def expect(self, names: Sequence[str]) -> None:
        """Note that these objects will probably be read, in this order; fetching begins with the
        first read."""
        with self._lock:
            if len(self._following) > _REMEMBERED:
                self._following.clear()
            self._following.update(pairwise(names))

    def read(self, name: str, begins: Callable[[str], int]) -> bytes:
        """An object's bytes from an offset on; the next objects are fetched meanwhile.

        Args:
            begins: the offset of each object at which this kind of reading begins.

        Raises:
            OSError: the object is missing, or the store does not answer.
        """
        key = name, begins(name)
        with self._lock:
            mine = self._fetched.pop(key, None)
            self._begin_next(name, begins)
        return self._fetch(*key) if mine is None else mine[1].result()

    def _begin_next(self, name: str, begins: Callable[[str], int]) -> None:
        """Begin to fetch the objects after one, as far as they fit; the oldest give way."""
        following, room = self._following.get(name), AHEAD_BYTES
        for _ in range(_AT_ONCE):
            size = None if following is None else self._size(following)
            if following is None or size is None:
                break
            key = following, begins(following)
            room -= size - key[1]
            if room < 0:
                break
            if key in self._fetched:
                self._fetched.move_to_end(key)
            else:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(_AT_ONCE, "pgsluice read ahead")
                self._fetched[key] = size - key[1], self._threads.submit(self._fetch, *key)
            following = self._following.get(following)
        while sum(size for size, _ in self._fetched.values()) > AHEAD_BYTES:
            self._fetched.popitem(last=False)[1][1].cancel()
