"""Uploads files in the background, from memory up to a size, and waits for them once.

A data file and its vectors are uploaded while the next file is computed; the commit waits for all
of them with :meth:`Uploads.settle`. The bytes that wait for upload are limited for the whole
process: a writer that is faster than the store has to wait.
"""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any

WHOLE_BYTES = 32 << 20
"""Files up to this size, in bytes, are sent by one request."""
PART_BYTES = 8 << 20
"""The part size of larger files, in bytes, which are sent while they are written."""
_THREADS = 6
_LARGE_THREADS = 1000  # each is started when it is needed
_IN_FLIGHT_BYTES = 64 << 20
_WAITING_PARTS = 2
_POLL_S = 0.2

Send = Callable[[Any], None]
"""Sends a file: its bytes, or an iterator over its parts, which raises if the file is given up."""


class GivenUp(Exception):
    """The block that wrote a file raised, so the file is not stored."""


class _Budget:
    """The limit on the bytes in memory; a single file is always allowed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, amount: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + amount <= self._limit)
            self._used += amount

    def give_back(self, amount: int) -> None:
        with self._changed:
            self._used -= amount
            self._changed.notify_all()


class Uploads:
    """The uploads of this process that nothing has waited for yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[tuple[Any, str], tuple[int, Future[None]]] = {}
        self._budget = _Budget(_IN_FLIGHT_BYTES)
        self._pool = ThreadPoolExecutor(_THREADS, "pgsluice upload")
        # Its own threads: a large file's upload waits for its writer, and must not hold others up.
        self._large = ThreadPoolExecutor(_LARGE_THREADS, "pgsluice large upload")

    def send_whole(self, place: Any, name: str, data: bytes, send: Send) -> None:
        """Send a file in the background."""
        self._budget.take(len(data))

        def work() -> None:
            try:
                send(data)
            finally:
                self._budget.give_back(len(data))

        self._add(place, name, self._pool.submit(work))

    def send_parts(self, place: Any, name: str, parts: Iterator[bytes], send: Send) -> Future[None]:
        """Send a large file in the background while its parts are written."""
        upload = self._large.submit(send, parts)
        self._add(place, name, upload)
        return upload

    def settle(self, place: Any, names: Iterable[str]) -> None:
        """Wait for these files, and for all files that this thread has written to a place; raises
        StoreError if one could not be sent."""
        wanted = {(place, name) for name in names}
        here = threading.get_ident()
        with self._lock:
            mine = [
                key
                for key, (thread, _) in self._pending.items()
                if key in wanted or (thread == here and key[0] == place)
            ]
            uploads = [self._pending.pop(key)[1] for key in mine]
        failures = [error for upload in uploads if (error := upload.exception()) is not None]
        for error in failures:
            if not isinstance(error, GivenUp):
                raise error

    def await_one(self, place: Any, name: str, *, forget: bool = False) -> None:
        """Wait for a file, if it is being sent; its errors are raised elsewhere."""
        with self._lock:
            found = self._pending.get((place, name))
            if found is not None and forget:
                del self._pending[place, name]
        if found is not None:
            found[1].exception()

    def _add(self, place: Any, name: str, upload: Future[None]) -> None:
        with self._lock:
            self._pending[place, name] = threading.get_ident(), upload


class UploadStream(io.RawIOBase):
    """A unique file of a store while Arrow writes it."""

    def __init__(self, uploads: Uploads, place: Any, name: str, send: Send) -> None:
        super().__init__()
        self._uploads = uploads
        self._place = place
        self._name = name
        self._send = send
        self._buffer = bytearray()
        self._length = 0
        self._parts: queue.Queue[bytes | GivenUp | None] | None = None
        self._upload: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(data).cast("B")
        self._buffer += view
        self._length += len(view)
        if self._parts is None and len(self._buffer) > WHOLE_BYTES:
            self._parts = queue.Queue(_WAITING_PARTS)
            self._upload = self._uploads.send_parts(
                self._place, self._name, self._given(self._parts), self._send
            )
        if self._parts is not None:
            while len(self._buffer) >= PART_BYTES:
                self._put(bytes(self._buffer[:PART_BYTES]))
                del self._buffer[:PART_BYTES]
        return len(view)

    def tell(self) -> int:
        return self._length

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Send the complete file in the background, or the last part of a large one."""
        if self.closed:
            return
        super().close()
        rest, self._buffer = bytes(self._buffer), bytearray()
        if self._parts is None:
            self._uploads.send_whole(self._place, self._name, rest, self._send)
        else:
            self._put(rest)
            self._put(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up()

    def __del__(self) -> None:
        if not self.closed:
            self._give_up()

    def _give_up(self) -> None:
        super().close()
        self._buffer = bytearray()
        if self._parts is not None:
            with suppress(Exception):
                self._put(GivenUp())
            self._uploads.await_one(self._place, self._name, forget=True)

    def _put(self, part: bytes | GivenUp | None) -> None:
        assert self._parts is not None
        assert self._upload is not None
        while True:
            if self._upload.done():
                self._upload.result()  # raises why: it ends before the last part by an error only
                return
            with suppress(queue.Full):
                self._parts.put(part, timeout=_POLL_S)
                return

    @staticmethod
    def _given(parts: queue.Queue[bytes | GivenUp | None]) -> Iterator[bytes]:
        while (part := parts.get()) is not None:
            if isinstance(part, GivenUp):
                raise part
            if part:
                yield part
