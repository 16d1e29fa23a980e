"""``pgsluice verify --repair``: has the rows of targets that differ read again.

A repair is a copy that first compares the target with the source under its own snapshot. It reads
only the ranges of keys that differ, and one commit replaces their rows. Targets whose single rows
cannot be replaced are copied. The run of the subscription does it; without a run, this process is
the run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pgsluice.cli.copy_request import ask_for_copy
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import TableError, TablesUnfinished
from pgsluice.hints import copy_again, with_config
from pgsluice.monitor.followed_copy import follow_copy
from pgsluice.spool import find_record
from pgsluice.subscription.base.comparing import can_replace_rows
from pgsluice.subscription.running.run import run
from pgsluice.subscription.verify import VerifiedTable


def repair_tables(
    config: Config,
    subscription: SubscriptionConfig,
    results: Sequence[VerifiedTable],
    stop: threading.Event,
) -> list[VerifiedTable]:
    """Repair the tables that differ; returns all results.

    Args:
        stop: ends a run within this process.

    Raises:
        PgsluiceError: the active run did not accept a request, or ended; or what a run raises.
    """
    name, done = subscription.name, list(results)
    record = find_record(config.spool.place, name)
    asked: dict[int, bool] = {}
    for number, result in enumerate(done):
        if result.comparison is None or result.comparison.equal:
            continue
        table = None if record is None else record.tables.get(result.oid)
        if table is None or not table.is_active:
            done[number] = _not_repaired(result, "it is not replicating now")
        elif table.incomplete or not table.copied.position:
            why = "a table that does not get all rows and changes is not repaired"
            done[number] = _not_repaired(result, why)
        else:
            repairs = can_replace_rows(subscription, table, result.comparison)
            done[number] = replace(result, is_copied=not repairs)
            asked[number] = ask_for_copy(config, name, result.oid, repairs=repairs)
    if not all(asked.values()):
        with suppress(TablesUnfinished):  # the record says which
            run(config, once=True, names=[name], stop=stop)
    for number, is_of_run in asked.items():
        done[number] = _repaired(config, done[number], is_of_run=is_of_run)
    return done


def _not_repaired(result: VerifiedTable, why: str) -> VerifiedTable:
    remedy = with_config(copy_again(result.title))
    return replace(result, not_repaired=f"{why}; to copy the table: {remedy}")


def _repaired(config: Config, result: VerifiedTable, *, is_of_run: bool) -> VerifiedTable:
    """The result with the outcome of its repair."""
    try:
        if is_of_run:
            follow_copy(config.spool.place, result.subscription, result.oid, lambda _: None)
    except TableError as error:
        return replace(result, not_repaired=str(error))
    record = find_record(config.spool.place, result.subscription)
    table = None if record is None else record.tables.get(result.oid)
    if table is None or not table.is_active:
        why = "it is no longer published" if table is None else table.error
        return replace(result, not_repaired=why or "asked to stop; the next run repairs it")
    if table.copied.position < result.position:
        return replace(result, not_repaired="its state has changed meanwhile; verify it again")
    return replace(result, repaired_at=table.copied.position)
