"""Waits until a live run has seen, copied and applied everything that the source has now."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from tests.support.pipeline import Pipeline

from pgsluice.lsn import Lsn
from pgsluice.monitor.status import StatusReader
from pgsluice.spool import Spool, SpoolReader

Tables = list[tuple[str, dict[str, Any]]]
"""Subscription and table in ``pgsluice status --json``; two tables may have had one name."""


class TablesDone:
    """Counts the tables that were seen to wait for something, and then not to. Each counts once,
    so a wait that goes on for as long as the count grows has an end."""

    def __init__(self) -> None:
        self._waiting: set[tuple[str, str]] = set()
        self._done: set[tuple[str, str]] = set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._done)

    def look(self, subscription: str, title: str, *, is_waiting: bool) -> None:
        """Look at a table of a subscription."""
        name = subscription, title
        if is_waiting:
            self._waiting.add(name)
        elif name in self._waiting:
            self._done.add(name)


class Settling:
    """The waits of one pipeline.

    Args:
        pipeline: its run is live.
        subscription: the one that copies witnesses.
        publish: what to do with a new witness so that it is sent; None where that needs nothing.
        schema: of the witnesses; they are tables that show that a look at the catalog is over.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        subscription: str = "lake",
        publish: Callable[[str], None] | None = None,
        schema: str = "public",
    ) -> None:
        self._pipeline = pipeline
        self._subscription = subscription
        self._publish = publish
        self._schema = schema
        self._witnesses = 0

    def await_witness(self) -> None:
        """Until a look at the catalog that began after this moment has had its consequences.

        A table made now is found by such a look, and copied with whatever else it found.
        """
        name = self.make_witness()

        def is_copied(table: dict[str, Any]) -> bool:
            return table["state"] in "fsrp"

        def has_witness(tables: Tables) -> bool:
            return any(
                table["table"] == name and table["state"] in "fsr"
                for subscription, table in tables
                if subscription == self._subscription
            )

        self._await(has_witness, is_copied, f"{name} is copied")
        self.await_settled()

    def make_witness(self) -> str:
        """A new table, published; its name without the schema."""
        self._witnesses += 1
        name = f"witness_{self._witnesses}"
        self._pipeline.database.execute(f"CREATE TABLE {self._schema}.{name} (id int PRIMARY KEY)")
        if self._publish is not None:
            self._publish(name)
        return name

    def await_settled(self) -> None:
        """Until everything that the server has now is applied, and no table waits for a copy or
        to be verified. A table that is no longer published is verified when it is published again.
        """
        self.await_received()
        position = _number(self._status()["spool"]["position"])  # a load goes on past it

        def is_settled(table: dict[str, Any]) -> bool:
            return table["state"] == "p" or (
                table["state"] in "fsr" and _number(table["applied_through"]) >= position
            )

        def are_settled(tables: Tables) -> bool:
            return all(is_settled(table) for _, table in tables) and not any(
                table.is_active and table.is_published and table.pending.verification
                for subscription in self._pipeline.config.subscriptions
                for table in self._pipeline.record(subscription.name).tables.values()
            )

        self._await(are_settled, is_settled, "all is applied")

    def _await(
        self,
        is_over: Callable[[Tables], bool],
        is_settled: Callable[[dict[str, Any]], bool],
        why: str,
    ) -> None:
        """Wait for as long as tables settle."""
        done = TablesDone()

        def look() -> bool:
            tables = self._all_tables()
            for subscription, table in tables:
                title = f"{table['schema']}.{table['table']}"
                done.look(subscription, title, is_waiting=not is_settled(table))
            return is_over(tables)

        def unsettled() -> str:
            spool = self._status()["spool"]
            waiting = [
                f"{name}: {table['schema']}.{table['table']}: {table['state']} at"
                f" {table['applied_through']}: {table['error']}"
                for name, table in self._all_tables()
                if not is_settled(table)
            ]
            return "\n".join([f"{why}; the spool is at {spool['position']}", *waiting[:20]])

        self._pipeline.wait_until(look, why=unsettled, progress=lambda: done.count)

    def await_received(self) -> None:
        """Until capture has received everything that the server has now."""
        target = self._flush_lsn()
        self._pipeline.wait_until(
            lambda: self._frontier() >= target,
            why="capture has received all",
            progress=self._frontier,
        )

    def is_received(self) -> bool:
        """Whether capture has received everything that the server has now."""
        return self._frontier() >= self._flush_lsn()

    def capture_message(self) -> str:
        """What capture says of what is in the way."""
        return self._status()["capture"]["message"] or ""

    def tables(self, subscription: str) -> list[dict[str, Any]]:
        """A subscription's tables in ``pgsluice status --json``."""
        return [table for name, table in self._all_tables() if name == subscription]

    def _all_tables(self) -> Tables:
        return [
            (subscription["name"], table)
            for subscription in self._status()["subscriptions"]
            for table in subscription["tables"]
        ]

    def _flush_lsn(self) -> int:
        ((lsn,),) = self._pipeline.database.execute("SELECT pg_current_wal_flush_lsn()")
        return _number(lsn)

    def _frontier(self) -> int:
        """As ``status`` says, which reads everything else, too; -1 before the slot exists."""
        place = self._pipeline.config.spool.place
        if not Spool.exists(place) or Spool.open(place).chain_start() is None:
            return -1
        return int(SpoolReader(place).frontier())

    def _status(self) -> dict[str, Any]:
        return self._reader.read().to_json()

    @cached_property
    def _reader(self) -> StatusReader:
        """Reads what is new, and leaves the server to the run: waits ask many times."""
        return StatusReader(self._pipeline.config, asks_server=False)


def _number(lsn: str | None) -> int:
    return -1 if lsn is None else int(Lsn.parse(lsn))
