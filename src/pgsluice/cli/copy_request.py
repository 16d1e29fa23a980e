"""Requests copies and repairs of tables, from the active run or in the record, and follows them."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pgsluice.cli.output import say
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.config.in_force import difference, digests
from pgsluice.config.values.table_names import table_named
from pgsluice.errors import (
    ConfigError,
    ExitCode,
    ForeignTarget,
    PgsluiceError,
    SpoolBusy,
    TableError,
    TablesUnfinished,
)
from pgsluice.events import CopiesProgress, CopyProgress, MetricsCallback, TableStateChanged
from pgsluice.hints import copy_again, with_config
from pgsluice.shown import shown
from pgsluice.spool import RecordStore, Spool, TableState, find_record
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import read_copy_status, read_run_settings
from pgsluice.spool.records.store import record_reader
from pgsluice.stores.spool_place import SpoolPlace
from pgsluice.subscription.base.comparing import can_replace_rows
from pgsluice.subscription.base.requests import request_copy
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.running.reloading import words_of_left

if TYPE_CHECKING:
    from pgsluice.subscription.verify import VerifiedTable

_ACCEPT_TIMEOUT_S = 60.0
_POLL_S = 0.1
_FOLLOW_POLL_S = 0.5


def find_table(config: Config, table: str, subscription: str | None) -> dict[str, int]:
    """The table's OID in each subscription that has it, by the subscription's name.

    Raises:
        ConfigError: no subscription has the table.
    """
    candidates = (
        [candidate for candidate in config.subscriptions if candidate.enabled]
        if subscription is None
        else [config.subscription(subscription)]
    )
    found = [
        (candidate.name, oid, entry.target_name)
        for candidate in candidates
        if (record := find_record(config.spool.place, candidate.name)) is not None
        for oid, entry in record.tables.items()
    ]
    names = {name for _, _, name in found}
    meant = table_named(table, names, f"no subscription has a table {table}")
    return {subscription: oid for subscription, oid, name in found if name == meant}


def ask_to_replace(config: Config, oids: Mapping[str, int], table: str) -> None:
    """Ask the user before a copy replaces rows that another spool wrote into a table's target.

    Raises:
        ConfigError: there is no terminal to ask on.
        typer.Exit: the user does not agree.
    """
    for name, oid in oids.items():
        foreign = _foreign_target(config, name, oid)
        if foreign is None:
            continue
        if not sys.stdin.isatty():
            command = f"pgsluice copy CONFIG --yes {shlex.quote(table)}"
            raise ConfigError(
                foreign.what,
                hint=f"to replace its rows, which deletes the old ones: {command}\n"
                "to keep them, move it away before that",
            )
        if not typer.confirm(f"{foreign.what}. Replace its rows with those of {shown(table)}?"):
            say("nothing was copied")
            raise typer.Exit(ExitCode.FAILED)


def _foreign_target(config: Config, name: str, oid: int) -> ForeignTarget | None:
    """The error that a table's target has rows of another spool, if that can be found out now."""
    record = find_record(config.spool.place, name)
    table = None if record is None else record.tables.get(oid)
    if table is None or table.is_active:
        return None
    import pyarrow as pa

    from pgsluice.sinks import make_sink
    from pgsluice.sinks.contract import TargetTable
    from pgsluice.sinks.fence import TableWriter
    from pgsluice.sinks.identity import TargetIdentity
    from pgsluice.subscription.base.options import sink_options, target_mode

    spool_id = Spool.open(config.spool.place).identity.spool_id
    identity = TargetIdentity(
        spool_id, oid, table.copy_number, target_mode(config.subscription(name), table.target_name)
    )
    shell = TargetTable(*table.target_name, pa.schema([]), (), table.claim.predecessor_oids)
    try:
        sink = make_sink(sink_options(config.subscription(name)))
        TableWriter(sink, shell, identity).refuse_foreign_target()
    except ForeignTarget as error:
        return error
    except (PgsluiceError, OSError):  # the copy says what is in its way
        return None
    return None


def _report_other_settings(config: Config, name: str) -> bool:
    """Report settings in the file that the run does not use yet; True if it can take over some."""
    running = read_run_settings(config.spool.folder, name)
    if running is None or config.path is None or running.path != str(config.path):
        return False
    found = difference(running.digests, digests(config))
    file = config.path.name
    if found.taken:
        from pgsluice.publication import Statements

        try:
            Statements.read(config.publications)
        except ConfigError as error:
            say(f"the active run keeps the settings that it has: {error.what}")
            return False
        say(f"the active run reloads {file} before it copies: {', '.join(found.taken)} changed")
    if found.left:
        say(words_of_left(found, file, running.read_at))
    return bool(found.taken)


def ask_for_copy(config: Config, name: str, oid: int, *, repairs: bool = False) -> bool:
    """Request a copy of the subscription's table.

    Args:
        repairs: only what differs from the source has to be read again.

    Returns:
        True if an active run accepted the request; False if none is active, or it ended before
        that, and the request was written to the subscription's record.

    Raises:
        SpoolBusy: the run is on another machine.
        PgsluiceError: an active run did not accept the request in time.
    """
    ActiveRun(config.spool.place, name).refuse_elsewhere()
    request, deadline = None, 0.0
    while request is None or request.exists():
        # The run may end before it takes the request; another command holds the lock briefly.
        with suppress(SpoolBusy), subscription_lock(config.spool.folder, name):
            if request is None or request.exists():
                store = RecordStore.open(config.spool.place, name)
                SubscriptionTables(store, lambda _: None).request_copy(oid, repairs=repairs)
                if request is not None:
                    request.unlink()
                return False
            return True
        if request is None:
            request = request_copy(
                subscription_folder(config.spool.folder, name),
                oid,
                has_other_settings=not repairs and _report_other_settings(config, name),
                repairs=repairs,
            )
            deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
        if time.monotonic() > deadline:
            raise PgsluiceError(
                f'`pgsluice run` of subscription "{name}" has not accepted the request for a copy '
                "yet",
                hint="nothing to do: the request is saved, and the run copies the table after its "
                "current step; `pgsluice status CONFIG` shows the copy",
            )
        time.sleep(_POLL_S)
    return True


def follow_copy(
    spool: SpoolPlace | Path,
    name: str,
    oid: int,
    report: MetricsCallback,
    pause: Callable[[], None] = lambda: time.sleep(_FOLLOW_POLL_S),
) -> None:
    """Report the progress of a copy in another process until the table is copied.

    It reads the spool's files, and reports the same events as the run: the live view is the same.

    Args:
        spool, name: the subscription, whose run has accepted the request for the copy.
        oid: the table's OID.
        report: receives the events.
        pause: waits a moment between two reads of the files.

    Raises:
        TableError: the table is parked, or no longer published.
        PgsluiceError: the run ended before the table was copied.
    """
    spool = SpoolPlace.of(spool)
    lock, reader = subscription_lock(spool.folder, name), record_reader(spool, name)
    while True:
        is_running = lock.is_held()  # asked before the record is read, which it may end with
        record = reader.read()
        table = None if record is None else record.tables.get(oid)
        if record is None or table is None:
            raise TableError(
                f"the table was not copied: subscription {name} no longer receives the table"
            )
        # While a table is copied, what the copy mends is not reported.
        incomplete = () if table.is_to_copy else table.incomplete
        place = name, table.namespace, table.name
        report(TableStateChanged(*place, table.shown_state, table.error, incomplete))
        if not table.is_to_copy:
            break
        if not is_running:
            raise PgsluiceError(
                f'`pgsluice run` of subscription "{name}" ended before it had copied table '
                f"{table.title}",
                hint="start `pgsluice run CONFIG`, which resumes the copy",
            )
        status = read_copy_status(spool.folder, record)
        if (amount := status.tables.get(oid)) is not None:
            report(CopyProgress(*place, amount))
        if (waits_for := status.waits_for.get(oid)) or status.all_tables:
            waits = (waits_for,) if waits_for else ()
            report(CopiesProgress(name, status.done, status.all_tables, status.amount, waits))
        pause()
    if table.state is TableState.PARKED:
        raise TableError.of_text(f"table {table.title} is parked: {table.error}", table=table.title)


def repair_tables(
    config: Config,
    subscription: SubscriptionConfig,
    results: Sequence[VerifiedTable],
    stop: threading.Event,
) -> list[VerifiedTable]:
    """Have the rows of targets that differ read again, for ``pgsluice verify --repair``.

    A repair is a copy that first compares the target with the source under its own snapshot. It
    reads only the ranges of keys that differ, and one commit replaces their rows. Targets whose
    single rows cannot be replaced are copied. The run of the subscription does it; without a run,
    this process is the run.

    Args:
        stop: ends a run within this process.

    Raises:
        PgsluiceError: the active run did not accept a request, or ended; or what a run raises.

    Returns:
        all results.
    """
    from pgsluice.subscription.running.run import run

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
