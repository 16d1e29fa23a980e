"""Several requests to a store at a time: one after the other, each would wait for its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pgsluice.stores.contract import Folder

One = TypeVar("One")
Answer = TypeVar("Answer")


def at_once(
    folder: Folder, ask: Callable[[One], Answer], things: Iterable[One], most: int = 8
) -> Iterator[Answer]:
    """What ``ask`` returns for each thing, in their order; raises what it raises.

    Args:
        folder: that is asked; on a disk, one thing comes after the other.
        most: the maximum number of requests at a time, in an object store.
    """
    things = [*things]
    if folder.path is not None or len(things) < 2:
        yield from map(ask, things)
        return
    with ThreadPoolExecutor(min(most, len(things))) as threads:
        yield from threads.map(ask, things)
