"""Records at each look what targets do not get; the sentences are in :mod:`.completeness`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pgsluice.config import SourceConfig, SubscriptionConfig
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.spool import SubscriptionRecord, TargetName
from pgsluice.subscription.lifecycle.look_events import Assessed
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.completeness import why_incomplete, why_standing


def names_to_find(
    record: SubscriptionRecord, source: Sequence[ReplicatedTable]
) -> frozenset[TargetName]:
    """The names of targets that no table has that is sent."""
    known = {table.target_name for table in (*record.tables.values(), *record.unpublished.values())}
    sent = {(table.facts.namespace, table.facts.name) for table in source}
    return frozenset({*known, *record.former} - sent)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one look says of the targets.

    Attributes:
        source: the tables that the publications send now.
        found: those of :func:`names_to_find` that a table at the source has.
        publications: the server's that the stream is asked for.
    """

    source: Sequence[ReplicatedTable]
    found: Collection[TargetName]
    publications: Sequence[str]

    def apply(
        self,
        tables: SubscriptionTables,
        source_config: SourceConfig,
        subscription: SubscriptionConfig,
    ) -> None:
        """Record it, durably."""
        sent = {table.facts.oid: table for table in self.source}
        has_rules = subscription.publications is not None
        with tables.changing():
            record = tables.record
            for oid, known in record.tables.items():
                if oid in sent:
                    reasons = why_incomplete(
                        sent[oid],
                        known,
                        origin=source_config.origin,
                        has_key=known.title in subscription.key,
                    )
                else:
                    reasons = (self._why_standing(known.target_name, record, has_rules=has_rules),)
                if reasons != known.incomplete:
                    tables.apply(oid, Assessed(reasons))
            former = {
                name: replace(left, why=self._why_standing(name, record, has_rules=has_rules))
                for name, left in record.former.items()
            }
            if former != record.former:
                tables.keep_former(former)

    def _why_standing(
        self, name: TargetName, record: SubscriptionRecord, *, has_rules: bool
    ) -> str:
        left = record.former.get(name)
        renamed = None if left is None else record.tables.get(left.oids[0])
        return why_standing(
            name,
            is_there=name in self.found,
            publication=next(iter(self.publications), "…"),
            has_rules=has_rules,
            new_name="" if renamed is None else renamed.title,
        )
