"""Objects of a store are fetched ahead, several at a time."""

from __future__ import annotations

import threading

import pytest

from pgsluice.spool import object_storage as module
from pgsluice.spool.object_storage import ReadAhead

NAMES = [f"segments/{number}" for number in range(10)]


class Store:
    """Objects of one size; the first requests answer together."""

    def __init__(self, size: int = 4, together: int = 1) -> None:
        self.size = size
        self.missing: set[str] = set()
        self.asked: list[str] = []
        self._barrier = threading.Barrier(together)
        self._together = together

    def fetch(self, name: str, begin: int) -> bytes:
        self.asked.append(name)
        if len(self.asked) <= self._together:
            self._barrier.wait(timeout=60)
        if name in self.missing:
            raise FileNotFoundError(name)
        return f"{name}@{begin}".encode()

    def ahead(self) -> ReadAhead:
        return ReadAhead(self.fetch, lambda _name: self.size)


def whole(_name: str) -> int:
    return 0


def test_several_requests_wait_at_the_same_time() -> None:
    store = Store(together=9)
    ahead = store.ahead()
    ahead.expect(NAMES)
    assert [ahead.read(name, whole) for name in NAMES] == [f"{name}@0".encode() for name in NAMES]
    assert sorted(store.asked) == NAMES, "each is fetched once"


def test_two_orders_are_known_at_a_time() -> None:
    store = Store(together=3)
    ahead = store.ahead()
    ahead.expect(["a", "b"])
    ahead.expect(["part 1", "part 2", "part 3"])
    assert ahead.read("part 1", whole) == b"part 1@0"
    rest = [ahead.read(name, whole) for name in ("a", "b", "part 2")]
    assert rest == [b"a@0", b"b@0", b"part 2@0"]


def test_a_tail_is_not_taken_for_the_object() -> None:
    ahead = Store().ahead()
    ahead.expect(NAMES)
    assert ahead.read(NAMES[0], lambda _name: 3) == b"segments/0@3"
    assert ahead.read(NAMES[1], whole) == b"segments/1@0"


def test_an_error_belongs_to_its_object_and_is_asked_for_again() -> None:
    store = Store()
    store.missing = {NAMES[1]}
    ahead = store.ahead()
    ahead.expect(NAMES[:2])
    ahead.read(NAMES[0], whole)
    with pytest.raises(FileNotFoundError):
        ahead.read(NAMES[1], whole)
    store.missing.clear()
    assert ahead.read(NAMES[1], whole) == b"segments/1@0"


def test_what_is_fetched_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 2 * 2**20)
    store = Store(size=2**20)
    ahead = store.ahead()
    ahead.expect(NAMES)
    ahead.read(NAMES[0], whole)
    assert set(store.asked) <= set(NAMES[:3])
    for name in NAMES[5:]:  # what is not read gives way
        assert ahead.read(name, whole) == f"{name}@0".encode()
