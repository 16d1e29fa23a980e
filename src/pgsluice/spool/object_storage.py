"""The spool's files in an object store: segments, parts, and small objects that are replaced.

An object is created only if its name is free, and a small object is replaced only if it is the one
that this process knows. So of two writers, the second one gets :class:`SpoolTaken`. A write is
durable when it returns. After a :class:`pgsluice.stores.contract.StoreError`, the object may still
appear.

Each listing is a paid request, so a reader lists at most once a second, and more rarely after a
minute without changes. Where capture runs on the same machine, it announces each segment by a file
in the machine's folder, and a reader lists only after that. Names of segments rise, so a long
listing is continued from its last name. Readers of one process share a listing, unless it is from
before they were opened. The writer itself lists once. Objects that a reader will open one after the
other are fetched several at a time.
"""

from __future__ import annotations

import bisect
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pgsluice.errors import SpoolTaken
from pgsluice.failpoints import failpoint
from pgsluice.small_files import replace_text
from pgsluice.spool.storage import Entry, LocalStorage, Storage, is_shard, shard_now
from pgsluice.stores.contract import Changed, Folder, NameTaken, Span
from pgsluice.stores.ranged_files import RangedFile
from pgsluice.stores.spool_place import SpoolPlace

if TYPE_CHECKING:
    import pyarrow as pa

_HEARTBEAT_S = 45.0
"""The age, in seconds, from which an announcement is that of a capture that has ended."""
PAGE_ENTRIES = 900
"""Longer listings are continued: a store lists a thousand names by one request."""
_WHOLE_S = 60.0
"""The time between two whole listings, in seconds: only they show what was deleted."""
_TAIL_BYTES = 64 * 1024
_SMALL_BYTES = 256 * 1024
_AT_ONCE = 8
"""The maximum number of requests at a time."""
AHEAD_BYTES = 32 << 20
"""The maximum size, in bytes, of all objects that are fetched ahead."""
_REMEMBERED = 100_000
"""The number of names from which their order is forgotten."""
_NEWEST = "newest"
_SEGMENTS = "segments"
_base_name = attrgetter("name")
_ONE_WRITER = (
    "stop one of the two capture processes: only one can write to a spool. The spool's file "
    "epoch.json names the process (pid) and the host of the one that started last"
)


def open_storage(place: SpoolPlace | Path | str) -> Storage:
    """The storage of a spool's files; nothing is accessed yet. Raises ConfigError if the store's
    client is not installed."""
    place = SpoolPlace.of(place)
    return ObjectStorage(place) if place.is_remote else LocalStorage(place.folder)


def folder_of(place: SpoolPlace, name: str = "") -> Folder:
    """The object store's folder of a spool, or one below it."""
    from pgsluice.stores.places import folder_at  # it loads Arrow

    assert place.url is not None
    return folder_at(f"{place.url}/{name}" if name else place.url, place.options)


@dataclass(frozen=True, slots=True)
class ListingAges:
    """How old a listing may be, in seconds.

    Attributes:
        busy_s: while capture runs elsewhere.
        idle_s: the same, if no listing has changed for ``idle_after_s``.
        announced_s: while capture announces its segments on this machine.
    """

    busy_s: float = 1.0
    idle_s: float = 2.5
    idle_after_s: float = 60.0
    announced_s: float = 10.0


_AGES = ListingAges()


@dataclass(slots=True)
class _Listing:
    """A listing, and when it was made, changed, and made of all names; ``announced``: the
    announcement before."""

    entries: list[Entry]
    at: float
    changed_at: float
    whole_at: float
    announced: Hashable


_listings: dict[tuple[str, str, str], _Listing] = {}
"""The newest listings in this process, which all its readers share; by the spool, the machine's
folder and the listed folder."""


class Announcements:
    """A file of this machine by which capture announces segments to runs beside it.

    It is in a folder that :class:`pgsluice.spool.notices.FolderNotices` watches.
    """

    def __init__(self, machine_folder: Path) -> None:
        self._path = machine_folder / _SEGMENTS / _NEWEST

    def announce(self, name: str) -> None:
        """Announce a segment; errors of the disk are ignored, because readers also poll."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self._path, name)

    def still_there(self) -> None:
        """Say to runs on this machine that this capture still runs."""
        with suppress(OSError):
            self._path.touch()

    def newest(self) -> tuple[Hashable, bool]:
        """What identifies the newest announcement, and whether its capture still runs."""
        try:
            status = self._path.stat()
        except OSError:
            return None, False
        return (status.st_ino, status.st_mtime_ns), time.time() - status.st_mtime < _HEARTBEAT_S


class ReadAhead:
    """The objects that are being fetched ahead, several at a time; thread-safe.

    A reader of a long chain would otherwise wait for one answer after the other.

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
        """An object's bytes from an offset on; the next objects are fetched meanwhile. ``begins``:
        the offset at which this kind of reading begins in each object. Raises OSError if the object
        is missing, or the store does not answer."""
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


class ObjectStorage(Storage):
    """Objects below a prefix of an object store; see :class:`pgsluice.spool.storage.Storage`."""

    def __init__(self, place: SpoolPlace, ages: ListingAges = _AGES) -> None:
        self._place = place
        self._ages = ages
        self._folder = folder_of(place)
        self._ahead = ReadAhead(self._fetch, self._size)
        self._since = self._opened_at = time.monotonic()
        """Listings from before the first time are too old for this reader, and for it names that
        were deleted before the second one are not in a listing."""
        self._listings: dict[str, _Listing] = {}
        """Of the only writer, which keeps them up to date itself."""
        self._tags: dict[str, Hashable | None] = {}
        self._own: dict[str, bytes | None] | None = None
        self.announcements = Announcements(place.folder)

    def put(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        content = io.BytesIO()
        fill(content)
        data = content.getvalue()
        failpoint("spool.before_put")
        try:
            self._folder.create(name, data)
        except NameTaken as error:
            raise SpoolTaken(
                f"another capture process has written {self._place.named(name)} to this spool",
                hint=_ONE_WRITER,
                path=self._place.named(name),
            ) from error
        failpoint("spool.after_put")
        self._note(name, len(data))
        if name.startswith(f"{_SEGMENTS}/"):
            self.announcements.announce(name)
        return len(data)

    def _note(self, name: str, size: int) -> None:
        """Add an own object to its listing."""
        listing = self._listings.get(name.partition("/")[0])
        if listing is not None:
            entries = [*listing.entries]  # readers know a changed listing by its identity
            bisect.insort(entries, Entry(name, size, time.time()), key=_base_name)
            listing.entries = entries

    def replace(self, name: str, data: bytes) -> None:
        if name not in self._tags:
            self.expect(name)
        tag = self._tags.pop(name)
        try:
            self._tags[name] = self._folder.replace(name, data, tag)
        except Changed as error:
            raise SpoolTaken(
                f"another capture process writes to this spool: it has replaced the file "
                f"{self._place.named(name)}",
                hint=_ONE_WRITER,
                path=self._place.named(name),
            ) from error
        if self._own is not None:
            self._own[name] = data

    def expect(self, name: str) -> None:
        stored = self._folder.stat(name)
        self._tags[name] = None if stored is None else stored.tag

    def read(self, name: str) -> bytes | None:
        if self._own is None:
            return self.read_now(name)
        if name not in self._own:
            self._own[name] = self.read_now(name)
        return self._own[name]

    def read_now(self, name: str) -> bytes | None:
        """A small object as it is now, also if this process has written it."""
        try:
            return self._folder.read(name)
        except FileNotFoundError:
            return None

    def open(self, name: str, *, is_header: bool = False) -> pa.NativeFile:
        import pyarrow as pa

        begins = self._tail_at if is_header else lambda _: 0
        tail_at, tail = begins(name), self._ahead.read(name, begins)
        if not tail_at:
            return pa.BufferReader(tail)

        def fetch(start: int, length: int) -> bytes:
            if start >= tail_at:
                return tail[start - tail_at : start - tail_at + length]
            return self._folder.read_spans(name, [Span(start, length)])[0]

        return pa.PythonFile(RangedFile(fetch, tail_at + len(tail)), mode="r")

    def will_open(self, names: Sequence[str]) -> None:
        self._ahead.expect(names)

    def _tail_at(self, name: str) -> int:
        """Where reading of an object's header begins: a small one is read as a whole."""
        size = self._size(name)
        return 0 if size is None or size <= _SMALL_BYTES else size - _TAIL_BYTES

    def _fetch(self, name: str, begin: int) -> bytes:
        if not begin:
            return self._folder.read(name)
        return self._folder.read_spans(name, [Span(begin, _TAIL_BYTES)])[0]

    def _key(self, folder: str) -> tuple[str, str, str]:
        return str(self._place), str(self._place.folder), folder

    def _size(self, name: str) -> int | None:
        folder = name.partition("/")[0]
        listing = self._listings.get(folder) or _listings.get(self._key(folder))
        entries = [] if listing is None else listing.entries
        place = bisect.bisect_left(entries, name, key=_base_name)
        is_there = place < len(entries) and entries[place].name == name
        return entries[place].size_bytes if is_there else None

    def version(self, name: str) -> Hashable:
        """A new value at each call: what was read again may be damaged on its way."""
        return object()

    def entries(self, folder: str) -> Sequence[Entry]:
        if self._own is not None:
            known = self._listings.get(folder)
            if known is None:
                known = self._listings[folder] = self._listed(folder, None, None)
            return known.entries
        known = _listings.get(self._key(folder))
        announced, is_announced = self.announcements.newest()
        now = time.monotonic()
        if known is not None:
            ages = self._ages
            is_busy = now - known.changed_at < ages.idle_after_s
            pause_s = ages.busy_s if is_busy else ages.idle_s
            pause_s = ages.announced_s if is_announced else pause_s
            is_new = now - known.at < pause_s and announced == known.announced
            if is_new and known.at >= self._since:
                return known.entries
        listing = _listings[self._key(folder)] = self._listed(folder, known, announced)
        return listing.entries

    def _listed(self, folder: str, known: _Listing | None, announced: Hashable) -> _Listing:
        """A new listing, made from the known one if that is enough."""
        now = time.monotonic()
        whole_from = max(self._opened_at, now - _WHOLE_S)
        if known is not None and len(known.entries) > PAGE_ENTRIES and known.whole_at >= whole_from:
            later = self._list(folder, known.entries[-1].name)
            entries = [*known.entries, *later] if later else known.entries
            whole_at = known.whole_at
        else:
            entries, whole_at = self._list(folder), now
            if known is not None and entries == known.entries:
                entries = known.entries
        is_same = known is not None and entries is known.entries
        changed_at = known.changed_at if known is not None and is_same else now
        return _Listing(entries, now, changed_at, whole_at, announced)

    def _list(self, folder: str, after: str = "") -> list[Entry]:
        found = []
        for stored in self._folder.tree(f"{folder}/", after):
            _, shard, *rest = stored.name.split("/")
            if len(rest) == 1 and is_shard(shard):
                found.append(Entry(stored.name, stored.size, stored.written_at))
        return found

    def refresh(self) -> None:
        self._since = time.monotonic()

    def delete(self, *names: str) -> None:
        if not names:
            return
        self._folder.delete(*names)
        gone = set(names)
        for folder in {name.partition("/")[0] for name in gone} & self._listings.keys():
            listing = self._listings[folder]
            listing.entries = [entry for entry in listing.entries if entry.name not in gone]

    def shard(self, folder: str) -> str:
        """Not before the newest one, whatever the clock says: readers list from their last name."""
        entries = self.entries(folder)
        newest = entries[-1].name.split("/")[1] if entries else ""
        return max(shard_now(), newest)

    def own(self, small: Collection[str]) -> None:
        self._own = {}
        self._listings.clear()
        for name in small:
            self.expect(name)
