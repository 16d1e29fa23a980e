"""The steps of ``pgsluice drop``: on the server, in the spool's folder, and in a catalog.

An interrupted drop can be repeated: the spool's identity, which is needed to find everything else,
is removed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import typer

from pgsluice.capture.source.slot import check_identity
from pgsluice.catalog.publications.managed import drop_publications, our_publications
from pgsluice.catalog.publications.publications import PublicationInfo, drop_statement
from pgsluice.catalog.server import SlotInfo, server_info, slot_info
from pgsluice.cli.output import say, say_block
from pgsluice.config import Config
from pgsluice.config.values.target_names import CatalogTable
from pgsluice.errors import ConfigError, ExitCode, ForeignSource, SlotInUse, SourceUnreachable
from pgsluice.replication import ReplicationConnection, connect_sql, source_errors
from pgsluice.shown import shown
from pgsluice.spark.session.catalog import unregister
from pgsluice.spark.session.session import build_session
from pgsluice.spool import Owner, Spool, SpoolIdentity, find_record
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.layout import (
    SUBSCRIPTIONS,
    forget_spool,
    forget_subscription,
    subscription_names,
)
from pgsluice.spool.lock import subscription_lock, writer_lock
from pgsluice.sql import quote_literal
from pgsluice.stores.spool_place import SpoolPlace


def drop_subscription(config: Config, name: str, *, yes: bool, before: Callable[[], None]) -> None:
    """Remove one subscription's record and checkpoint; call ``before`` once the user has agreed."""
    # Compared as a name, not opened as a path: ".." is no subscription.
    place = config.spool.place
    folder = place.folder / SUBSCRIPTIONS
    here = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if name not in here | {*subscription_names(place)}:
        config.subscription(name)  # raises unless the subscription is configured
        say(f'subscription "{name}" has no state')
        return
    ActiveRun(place, name).refuse_elsewhere()
    with subscription_lock(place.folder, name):
        _ask(f'remove the record and the checkpoint of subscription "{name}"?', yes=yes)
        before()
        forget_subscription(place, name)
    say(f'removed the state of subscription "{name}"; its target tables are kept')


def drop_streams(path: Path, dsn: str, *, yes: bool) -> int:
    """Drop the slot, the publications and the spool of streaming queries.

    Raises:
        ConfigError: there is no spool, or it belongs to a configuration.
        SpoolBusy: a query is active.
        ForeignSource: the server is not the spool's source.

    Returns:
        as :func:`drop_all`.
    """
    if not Spool.exists(path):
        raise ConfigError(
            f"the folder {path} is not a spool",
            hint="give the folder that the streaming queries have as their option spool",
        )
    spool = Spool.open(path)
    identity, records = spool.identity, spool.subscriptions()
    for record in records:
        if record.owner is Owner.CONFIG:
            raise ConfigError(
                f"subscription {record.name} in this spool was created by a configuration of "
                "`pgsluice run`, not by a streaming query",
                hint="a run may still use this spool. To drop streaming queries, give --stream "
                "their own spool; `pgsluice drop CONFIG` removes this one, with the slot and all "
                "subscriptions of that configuration",
            )
    config = Config.model_validate(
        {
            "source": {
                "dsn": dsn,
                "slot": identity.slot,
                **({"publications": identity.publications} if identity.publications else {}),
            },
            "spool": {"path": str(path.absolute())},
        }
    )
    with ExitStack() as locks:
        locks.enter_context(no_capture(path))
        locks.enter_context(no_runs(spool.place))
        _refuse_other_server(config, identity)
        for record in records:
            reads = record.query.get("reads") or "rows"
            say(f'stream "{record.name}" of {reads}, read through {record.position}')
        return drop_all(config, yes=yes)


def _refuse_other_server(config: Config, identity: SpoolIdentity) -> None:
    source = config.source
    try:
        with ReplicationConnection.connect(source.conninfo, source.connect_timeout_s) as connection:
            check_identity(identity, connection.identify_system())
    except SourceUnreachable as error:
        raise _left_there(error, config.spool.place) from error


def _left_there(error: SourceUnreachable, place: SpoolPlace) -> SourceUnreachable:
    return SourceUnreachable(
        error.what,
        hint="the server still has the slot and the publications: try again when it is "
        f"reachable; if it never will be, remove {place}",
    )


def drop_all(config: Config, *, yes: bool, before: Callable[[], None] = lambda: None) -> int:
    """Drop the slot and our publications, and remove the whole spool.

    If our role lacks privileges for a part, this is reported first, with the SQL for a superuser.

    Args:
        before: called when the user has agreed, while all state still exists.

    Returns:
        the exit code: 1 if something is left on the server.
    """
    source, place = config.source, config.spool.place
    try:
        with connect_sql(
            source.conninfo, timeout_s=source.connect_timeout_s, application="drop"
        ) as connection:
            with source_errors("reading the slot"):
                slot = slot_info(connection, source.slot)
                server = server_info(connection)
                publications = our_publications(connection, source.publications)
            _refuse(slot, connection.info.dbname)
            may_drop_slot = slot is not None and server.has_replication
            left = _left(
                slot if not may_drop_slot else None,
                [each for each in publications if server.is_read_only or not each.may_alter],
            )
            if left:
                say(f"{server.user} may not drop everything; as a superuser:")
                say_block(left)
            names = ", ".join(each.name for each in publications)
            _ask(
                f"drop the slot {source.slot} with the WAL that it holds, "
                f"{f'our publications ({names}), ' if names else ''}"
                f"and all state in {place}{', except for these' if left else ''}?",
                yes=yes,
            )
            before()
            if may_drop_slot:
                with source_errors(f"dropping the slot {source.slot}"):
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [source.slot])
                say(f"dropped the slot {source.slot}")
            with source_errors("dropping publications"):
                if not server.is_read_only:
                    for name in drop_publications(connection, source.publications):
                        say(f"dropped the publication {shown(name)}")
            with source_errors("looking for what is left"):
                is_clear = (
                    not left
                    and slot_info(connection, source.slot) is None
                    and not our_publications(connection, source.publications)
                )
    except SourceUnreachable as error:
        raise _left_there(error, place) from error
    if forget_spool(place):
        say(f"removed the state in {place}")
    if is_clear and not Spool.exists(place):
        say(
            f"looked again: the server has no slot {source.slot} and no publication of ours, and "
            f"{place} has no spool"
        )
    say("the target tables are kept: move them away before the next copy, or set adopt = true")
    if left:
        say("left on the server; as a superuser:")
        say_block(left)
    return 1 if left else 0


def _left(slot: SlotInfo | None, publications: Sequence[PublicationInfo]) -> list[str]:
    """The statements that drop what our role may not drop: this slot, and these publications."""
    statements = []
    if slot is not None:
        statements.append(f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});")
    if publications:
        names = [publication.name for publication in publications]
        statements.append(f"{drop_statement(names)};")
    return statements


def _refuse(slot: SlotInfo | None, database: str) -> None:
    """Refuse to drop a slot that is in use or not ours."""
    if slot is None:
        return
    if slot.active_pid is not None:
        raise SlotInUse(
            f"slot {slot.name} is in use by the server's process {slot.active_pid}",
            hint="stop the pgsluice that receives from this slot first",
        )
    if slot.plugin != "pgoutput" or slot.database != database:
        raise ForeignSource(
            f"slot {slot.name} does not belong to pgsluice: it has the plugin {slot.plugin} and "
            f"belongs to database {slot.database}",
            hint="correct slot in [source]",
        )


def _ask(question: str, *, yes: bool) -> None:
    """Continue only if the user agrees."""
    if not yes and not typer.confirm(shown(question)):
        say("nothing was dropped")
        raise typer.Exit(ExitCode.FAILED)


def no_capture(path: Path) -> AbstractContextManager[object]:
    """The lock of the spool's writer, if there is a spool: while it is held, no capture can run."""
    return writer_lock(path) if path.is_dir() else nullcontext()


@contextmanager
def no_runs(place: SpoolPlace) -> Iterator[None]:
    """The locks of all subscriptions in a spool: while they are held, no run or query reads it.

    A run may be active without a capture, or its capture ended a moment ago and starts again.

    Raises:
        SpoolBusy: a run or a query is active.
    """
    with ExitStack() as locks:
        for name in subscription_names(place):
            ActiveRun(place, name).refuse_elsewhere()
            locks.enter_context(subscription_lock(place.folder, name))
        yield


def unregister_targets(config: Config, subscription: str | None) -> None:
    """Remove the tables that a run has registered from the catalog; their files stay.

    Without ``register`` in a sink, it does nothing.

    Args:
        subscription: only the targets of this subscription; None: all targets.

    Raises:
        ConfigError: Spark cannot be started.
        Exception: an error of Spark; nothing has been dropped on the server then.
    """
    entries = list(_entries(config, subscription))
    if not entries:
        say("no table is to be taken out of a catalog")
        return
    session = build_session(config.spark, "pgsluice drop")
    try:
        for entry in entries:
            name = shown(".".join(entry.name))
            why = unregister(session.sparkContext, entry)
            say(f"the catalog has no {name} of ours" if why is None else f"{name} is kept: {why}")
    finally:
        session.stop()


def _entries(config: Config, subscription: str | None) -> Iterator[CatalogTable]:
    for each in config.subscriptions:
        record = find_record(config.spool.place, each.name)
        if record is None or subscription not in (None, each.name):
            continue
        for table in (*record.tables.values(), *record.unpublished.values()):
            entry = each.sink.catalog_table(*each.names.table(table.namespace, table.name))
            if entry is not None:
                yield entry
