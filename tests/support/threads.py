"""Work on a thread of its own while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    work: Callable[[threading.Event], object], failures: list[BaseException] | None = None
) -> Iterator[threading.Thread]:
    """The work ends soon after the event, which is set behind the block; its error is raised
    there, and can be seen in ``failures`` before.
    """
    ended = threading.Event()
    failures = [] if failures is None else failures

    def guarded() -> None:
        try:
            work(ended)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures.pop()
