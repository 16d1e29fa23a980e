"""``pgsluice copy``: copy one table again.

Beside a live ``run`` it leaves the wish for it to take up. Without one it takes the run's
place: it copies the table, applies what the spool has for all tables, and ends.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.run import replicate
from pgsluice.config import Config, load_config
from pgsluice.errors import ConfigError, PgsluiceError, SpoolBusy
from pgsluice.spool import SubscriptionRecord, TableState

_TAKEN_UP_S = 60.0
_LOOK_S = 0.1


def copy(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or table in public")],
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", help="for this one only", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Copy one table again, from the source to the target."""
    from pgsluice.monitor.java import require_java

    loaded = load_config(config)
    require_java()
    oids = _find(loaded, table, subscription)
    waiting = [name for name, oid in oids.items() if not _ask(loaded, name, oid)]
    if waiting:
        code = replicate(loaded, once=True, names=waiting)
        if code:
            raise typer.Exit(code)
    typer.echo(f"{table} is copied again" if waiting else f"asked the run to copy {table} again")


def _find(config: Config, table: str, subscription: str | None) -> dict[str, int]:
    """Subscription -> the table's OID, for those that have it.

    Raises:
        ConfigError: none has it.
    """
    chosen = (
        [one for one in config.subscriptions if one.enabled]
        if subscription is None
        else [config.subscription(subscription)]
    )
    known: set[str] = set()
    found = {}
    for one in chosen:
        record = SubscriptionRecord.find(config.spool.path, one.name)
        for oid, entry in {} if record is None else record.tables.items():
            name = f"{entry.namespace}.{entry.name}"
            known.add(name)
            if table in (name, entry.name if entry.namespace == "public" else None):
                found[one.name] = oid
    if not found:
        tables = ", ".join(sorted(known)) or "none yet: start pgsluice run first"
        raise ConfigError(f"no subscription has a table {table}", hint=f"they have: {tables}")
    return found


def _ask(config: Config, name: str, oid: int) -> bool:
    """Have the subscription's table copied: True: a live run took it up; False: it is marked,
    and nobody runs.

    Raises:
        PgsluiceError: a run is there and does not take it up.
    """
    from pgsluice.subscription.exclusive import Exclusive
    from pgsluice.subscription.requests import request_copy

    folder = config.spool.subscription_folder(name)
    try:
        with Exclusive(folder, f"the subscription {name}"):
            record = SubscriptionRecord.load(config.spool.path, name)
            table = record.tables[oid]
            again = replace(table, state=TableState.INITIALISE, error=None, deferred=False)
            tables = {**record.tables, oid: again}
            replace(record, tables=tables).save(config.spool.path)
            return False
    except SpoolBusy:
        table = SubscriptionRecord.load(config.spool.path, name).tables[oid]
        request = request_copy(folder, table.namespace, table.name)
    deadline = time.monotonic() + _TAKEN_UP_S
    while request.exists():
        if time.monotonic() > deadline:
            raise PgsluiceError(
                f'the run of subscription "{name}" has not taken up the request yet',
                hint="it is noted and will be, when what the run is at has ended",
            )
        time.sleep(_LOOK_S)
    return True
