"""Functions for users: list the subscriptions of a spool, and drop one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, Spool, SpoolReader
from pgsluice.spool.layout import forget_subscription, record_path
from pgsluice.spool.lock import subscription_lock
from pgsluice.stores.spool_place import SpoolPlace


@dataclass(frozen=True, slots=True)
class SourceSubscription:
    """A subscription of a spool.

    Attributes:
        name: the name, as in the option ``subscription``.
        reads: ``table schema.name`` or ``all tables``; for a subscription of a configuration, its
            mode.
        position: the end of its last batch. The spool keeps all later changes.
        moved_at: when the position moved last.
        held_bytes: the size of the spool's segments after the position.
        is_configured: a configuration of pgsluice runs it.
    """

    name: str
    reads: str
    position: Lsn
    moved_at: datetime
    held_bytes: int
    is_configured: bool


def subscriptions(spool: str | Path) -> list[SourceSubscription]:
    """The subscriptions for which a spool keeps changes; works while capture and queries run.

    Raises:
        SpoolError: the folder is no spool, or a record cannot be read.
    """
    reader = SpoolReader(Path(spool))
    segments = reader.all_segments()
    return [
        SourceSubscription(
            record.name,
            str(record.query.get("reads") or record.mode),
            record.position,
            datetime.fromtimestamp(record_path(Path(spool), record.name).stat().st_mtime, UTC),
            sum(info.size_bytes for info in segments if info.end > record.position),
            record.owner is Owner.CONFIG,
        )
        for record in reader.spool.subscriptions()
    ]


def drop_subscription(spool: str | Path, name: str) -> None:
    """Drop a query's subscription, so that the spool keeps no changes for it.

    Capture may be running. A query with a checkpoint of the subscription is refused from then on.

    Raises:
        ConfigError: there is no such subscription, or it belongs to a configuration.
        SpoolBusy: a query is reading it.
    """
    record = Spool.open(Path(spool)).subscription(name)
    if record is None:
        known = ", ".join(each.name for each in Spool.open(Path(spool)).subscriptions()) or "none"
        raise ConfigError(
            f"the spool {spool} has no subscription {name!r}",
            hint=f"the subscriptions of this spool are: {known}",
            option="subscription",
        )
    if record.owner is Owner.CONFIG:
        raise ConfigError(
            f"subscription {name} was created by a pgsluice configuration, not by a streaming "
            "query",
            hint=f"drop the subscription with `pgsluice drop CONFIG --subscription {name}`",
            option="subscription",
        )
    with subscription_lock(Path(spool), name):
        forget_subscription(SpoolPlace.of(spool), name)
