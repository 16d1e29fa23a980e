"""What ``run`` says at its start and at its end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.subscription.running.test_driver import QUIET, config_of, driver_of, ready
from tests.support.spools import OID, START, SpoolMaker, orders

from pgsluice.errors import ForeignSource, PgsluiceError, SpoolBusy
from pgsluice.lsn import Lsn
from pgsluice.spool import TableState
from pgsluice.spool.lock import subscription_lock
from pgsluice.subscription.running.run import raise_unfinished, run


def test_once_says_which_tables_are_not_at_the_position(maker: SpoolMaker) -> None:
    target = maker.segment(orders(1))
    states: dict[str, dict[str, Any]] = {
        "done": {},
        "copied": {"state": TableState.COPIED},
        "waits": {"state": TableState.INITIALISE, "error": "public.waits: it is locked"},
        "cut_off": {"state": TableState.DATA_COPY},
        "behind": {"applied_through": Lsn(START), "error": "the disk is full"},
        "parked": {"state": TableState.PARKED, "error": "public.parked: no key"},
    }
    tables = {
        OID + 2 + number: ready(name, **{"applied_through": target, **more})
        for number, (name, more) in enumerate(states.items())
    }
    far = {OID: ready("orders", applied_through=target), QUIET: ready("q", applied_through=target)}
    driver_of(maker, far)
    raise_unfinished(config_of(maker), ["lake"], target)
    maker.segment(orders(2))  # what came later is not asked for
    raise_unfinished(config_of(maker), ["lake"], target)
    driver_of(maker, {**far, **tables})
    with pytest.raises(PgsluiceError) as raised:
        raise_unfinished(config_of(maker), ["lake"], target)
    assert str(raised.value).splitlines() == [
        "1 table is parked:",
        "  lake: public.parked: no key",
        f"  3 tables are not at {target} yet:",
        "  lake: public.waits: waits for a copy: it is locked",
        "  lake: public.cut_off: waits for a copy",
        f"  lake: public.behind: applied through {Lsn(START)}: the disk is full",
        "  → run again: it continues where it stopped",
    ]


def test_a_run_waits_for_a_command_that_holds_the_lock_for_a_moment(maker: SpoolMaker) -> None:
    """Such as one that requests a copy, and asks in that way whether a run is active."""
    driver_of(maker, {OID: ready("orders")})
    maker.close()
    config = config_of(maker)
    lock = subscription_lock(maker.path, "lake")
    lock.acquire()
    ending = threading.Timer(0.1, lock.release)
    ending.start()
    with pytest.raises(ForeignSource):  # it has the lock, and goes on
        run(config, once=True)
    ending.join()
    with lock, pytest.raises(SpoolBusy, match="another process runs the subscription lake"):
        run(config, once=True)
