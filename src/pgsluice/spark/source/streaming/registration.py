"""The subscription of a query: registered once, and tied to one table and one checkpoint.

A random id, the *registration*, ties a checkpoint to a subscription: the record has it, and so has
each offset of the query. Otherwise a query could be started with another query's checkpoint, or
with a new one, and would silently lack changes.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.options import EARLIEST, SNAPSHOT, SourceOptions
from pgsluice.spool import Owner, RecordStore, SpoolReader, SubscriptionRecord

_LOG = logging.getLogger("pgsluice.spark")
_PLANNED = "planned"
"""The record's key for the end of the last planned batch, for Spark 4.0 and 4.1: they do not say
where a batch starts. After a restart, Spark repeats this batch or continues after it."""


class Registration:
    """Reads, writes and checks the record of a query's subscription; used in the planning process.

    Args:
        options: the query's options, with a subscription.
        reader: opens the spool.
    """

    def __init__(self, options: SourceOptions, reader: Callable[[], SpoolReader]) -> None:
        assert options.subscription is not None
        self._name = options.subscription
        self._options = options
        self._reader = reader

    def check_name(self) -> SubscriptionRecord | None:
        """The subscription's record; None before it is registered.

        Raises:
            ConfigError: the subscription belongs to a configuration, or reads another table.
        """
        record = self._reader().spool.subscription(self._name)
        if record is None:
            return None
        if record.owner is not Owner.SOURCE:
            raise ConfigError(
                f"the name {record.name} is already used by a subscription of a pgsluice "
                "configuration on this spool",
                hint="set the option subscription to another name",
                option="subscription",
            )
        earlier_table, table = record.query.get("reads"), self._reads
        if earlier_table not in (None, table):
            raise ConfigError(
                f"subscription {self._name} has read {earlier_table} so far, but this query reads "
                f"{table}",
                hint=f"to read {table}, set the option subscription to another name, and set "
                f"another checkpointLocation; or read {earlier_table} again",
                option="table",
            )
        return record

    def begin(self) -> SubscriptionRecord:
        """The record for a query without a checkpoint; registers a new subscription.

        Raises:
            ConfigError: another checkpoint has read from the subscription, or the spool does not
                have the starting position.
        """
        record = self.check_name()
        if record is None:
            return self._register()
        if record.position == record.registered:  # no batch was committed yet
            if record.position >= self._reader().start():
                return record
            # Capture deleted what follows by the records from before this one.
            return self._register(is_again=True)
        if self._options.starting_position is not None:
            return self._register()
        raise ConfigError(
            f"another checkpoint has read subscription {self._name} up to {record.position}; the "
            "checkpoint of this query is empty, so the query would miss the changes before that "
            "position",
            hint="set checkpointLocation to the previous checkpoint; or choose where to start with "
            "the option starting_position (now, earliest, snapshot or an LSN)",
            option="subscription",
        )

    def of_checkpoint(self, name: str | None) -> SubscriptionRecord:
        """The record for a query that continues from its checkpoint.

        Args:
            name: the subscription in the checkpoint's offset; None: offsets of earlier versions
                have none.

        Raises:
            ConfigError: the checkpoint belongs to another subscription.
        """
        record = self.check_name()
        tag = None if record is None else tag_of(record)
        if record is not None and (name is None or name == tag):
            return record
        other, _, _ = (name or "").rpartition("/")
        if record is None and other in ("", self._name):
            raise ConfigError(
                f"the query has a checkpoint of subscription {self._name}, which does not exist in "
                "this spool: it was dropped, or belongs to another spool",
                hint="set another checkpointLocation to start the query from scratch",
                option="subscription",
            )
        is_former = other == self._name
        owner = "an earlier subscription of that name" if is_former else f"subscription {other}"
        raise ConfigError(
            f"the query's checkpoint is not one of subscription {self._name} of this spool, but of "
            f"{owner}",
            hint="set the option subscription to the one that the checkpoint belongs to; or set "
            "another checkpointLocation to start the query from scratch",
            option="subscription",
        )

    def move(self, record: SubscriptionRecord, position: Lsn, *, keeps_note: bool) -> None:
        """Record that the spool may drop changes up to ``position``.

        Args:
            keeps_note: the note of the last planned batch is kept. If Spark says where batches
                start, nothing notes those that follow.
        """
        query = dict(record.query)
        if not keeps_note:
            query.pop(_PLANNED, None)
        self._save(replace(record, position=position, query=query))

    def planned(self) -> dict[str, str] | None:
        """The end of the last planned batch; None: none was planned yet.

        Raises:
            ConfigError: a version of Spark that says where a batch starts has read the
                subscription, so that no batch is noted.
        """
        record = self.check_name()
        if record is None:
            return None
        planned = planned_of(record)
        if planned is None and record.position != record.registered:
            raise ConfigError(
                f"Spark 4.2 or newer has read subscription {record.name}, and this older "
                "Spark cannot continue its batches",
                hint="continue the query with Spark 4.2 or newer, or start it from scratch "
                "with another name in the option subscription and another "
                "checkpointLocation",
                option="subscription",
            )
        return planned

    def note_planned(self, end: Mapping[str, str]) -> None:
        """Note where the batch after the last planned one starts.

        Args:
            end: the offset of the last one.
        """
        record = self.check_name()
        assert record is not None  # a batch of it was planned
        self._save(replace(record, query={**record.query, _PLANNED: json.dumps(end)}))

    def _save(self, record: SubscriptionRecord) -> None:
        RecordStore.open(self._reader().spool.place, self._name).save(record)

    @property
    def _reads(self) -> str:
        return "all tables" if self._options.table is None else f"table {self._options.table}"

    def _register(self, *, is_again: bool = False) -> SubscriptionRecord:
        reader = self._reader()
        position, what = self._start(reader, is_again=is_again)
        record = SubscriptionRecord(
            self._name,
            Owner.SOURCE,
            mode="changelog",
            sink="",
            registered=position,
            position=position,
            query={"registration": uuid.uuid4().hex[:16], "reads": self._reads},
        )
        if self._options.starting_position == SNAPSHOT:
            record = replace(record, query={**record.query, "begins_with": SNAPSHOT})
        RecordStore.create(reader.spool.place, record)
        _LOG.warning("subscription %s starts at %s: %s", self._name, position, what)
        return record

    def _start(self, reader: SpoolReader, *, is_again: bool) -> tuple[Lsn, str]:
        """Where a new subscription starts, and what it gets, as text for the user; ``is_again``: it
        has lost its first start."""
        start, position = reader.start(), reader.position()
        wanted = self._options.starting_position
        if isinstance(wanted, Lsn):
            if not start <= wanted <= reader.frontier():
                raise ConfigError(
                    f"the option starting_position is {wanted}, but the spool has the changes from "
                    f"{start} to {reader.frontier()}",
                    hint="set starting_position to earliest, to now, or to an LSN in this range",
                    option="starting_position",
                )
            return wanted, "changes after it"
        if wanted == SNAPSHOT:
            return position, "the rows of its table, then changes"
        # Before a spool has a subscription it keeps everything, for its first reader.
        is_first = wanted is None and not reader.spool.subscriptions()
        if wanted == EARLIEST or is_first or is_again:
            return start, "all changes that the spool has"
        # Not the frontier: after a promotion, commits may come before it.
        return position, "changes that commit from now on"


def begins_with_rows(record: SubscriptionRecord) -> bool:
    """Whether the query's stream starts with the rows of its table."""
    return record.query.get("begins_with") == SNAPSHOT


def planned_of(record: SubscriptionRecord) -> dict[str, str] | None:
    """The offset at which the last planned batch ends; None: Spark says it itself."""
    planned: Any = record.query.get(_PLANNED)
    return None if planned is None else json.loads(planned)


def tag_of(record: SubscriptionRecord) -> str | None:
    """The registration in a query's offsets; None for an earlier version's record."""
    registration: Any = record.query.get("registration")
    return None if registration is None else f"{record.name}/{registration}"
