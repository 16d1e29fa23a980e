"""Asking for a table's copy: of a run that lives, or in the record when none does."""

from __future__ import annotations

import time

from pgsluice.config import Config
from pgsluice.errors import ConfigError, PgsluiceError, SpoolBusy
from pgsluice.spool import RecordStore, find_record
from pgsluice.subscription.exclusive import Exclusive
from pgsluice.subscription.requests import request_copy

_TAKEN_UP_S = 60.0
_LOOK_S = 0.1


def find_table(config: Config, table: str, subscription: str | None) -> dict[str, int]:
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
        record = find_record(config.spool.path, one.name)
        for oid, entry in {} if record is None else record.tables.items():
            name = f"{entry.namespace}.{entry.name}"
            known.add(name)
            if table in (name, entry.name if entry.namespace == "public" else None):
                found[one.name] = oid
    if not found:
        tables = ", ".join(sorted(known)) or "none yet: start pgsluice run first"
        raise ConfigError(f"no subscription has a table {table}", hint=f"they have: {tables}")
    return found


def ask_for_copy(config: Config, name: str, oid: int) -> bool:
    """Have the subscription's table copied: True: a live run took it up; False: it is marked,
    and nobody runs.

    Raises:
        PgsluiceError: a run is there and does not take it up.
    """
    folder = config.spool.subscription_folder(name)
    try:
        with Exclusive(folder, f"the subscription {name}"):
            store = RecordStore.open(config.spool.path, name)
            store.save(store.record.to_copy(oid, may_replace_foreign_target=True))
            return False
    except SpoolBusy:
        request = request_copy(folder, oid)
    deadline = time.monotonic() + _TAKEN_UP_S
    while request.exists():
        if time.monotonic() > deadline:
            raise PgsluiceError(
                f'the run of subscription "{name}" has not taken up the request yet',
                hint="it is noted and will be, when what the run is at has ended",
            )
        time.sleep(_LOOK_S)
    return True
