"""The priority of a copy's work beside other work."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from tests.support.waiting import HANGS_S

from pgsluice.copy.priority import stand_back

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no priorities of threads")


def niceness(_: object = None) -> int:
    """Of the thread that asks."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_only_the_thread_of_the_work_has_a_lower_priority() -> None:
    before, waits, ends = niceness(), threading.Event(), threading.Event()

    def work(_: object) -> int:
        waits.set()
        assert ends.wait(HANGS_S)
        return niceness()

    results: list[int] = []
    caller = threading.Thread(target=lambda: results.append(stand_back(work, None)))
    caller.start()
    assert waits.wait(HANGS_S)
    assert niceness() == before
    ends.set()
    caller.join()
    assert results == [min(before + 10, 19)]
    assert niceness() == before


def test_the_same_thread_does_all_work_of_a_process() -> None:
    """Of each thread, the allocators would keep some memory."""
    threads = {stand_back(lambda _: threading.get_ident(), None) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        stand_back(lambda number: 1 // number, 0)
