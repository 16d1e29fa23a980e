"""When and how the source's catalog is refreshed: in which session, and with which limits.

A refresh first asks whether the catalog has changed since the last one
(:mod:`pgsluice.catalog.changes`). It reads the catalog only if that or the subscription has
changed, and in one snapshot. :mod:`pgsluice.subscription.refresh.catalog_look` decides what it
means for each table. While the server is queried, the tables' lock is free, so batches continue.
After a promotion, refreshes wait until capture has followed the new primary: only then is it known
which earlier refreshes are still valid.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence

from pgsluice.catalog import Connection, one_snapshot
from pgsluice.catalog.changes import CatalogChanges
from pgsluice.catalog.partitions.new_partitions import notices_partitions
from pgsluice.catalog.publications.publications import notices_publications
from pgsluice.catalog.publications.published import FilterTexts
from pgsluice.catalog.server import LIMITS, insert_lsn, wal_timeline
from pgsluice.catalog.tables.tables import tables_named
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.config.configured_names import UnknownName, table_and_column, unknown_names
from pgsluice.errors import ConfigError, ParkReason
from pgsluice.published.discovery import ReplicatedTable, source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import connect_sql, source_errors
from pgsluice.shown import shown
from pgsluice.sinks import make_sink
from pgsluice.spool import SourceView, Spool, SpoolIdentity, SpoolReader, TableRecord
from pgsluice.subscription.base.options import sink_options, table_options
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState
from pgsluice.subscription.refresh.completeness import names_to_find, record_completeness

logger = logging.getLogger(__name__)


_UNSEEN = frozenset({ParkReason.RIGHTS, ParkReason.REWRITTEN})


class CatalogLooks:
    """The catalog refreshes of one subscription; thread-safe.

    Args:
        rules: the rules of pgsluice's own publications; None: everything that the server sends is
            applied.

    Attributes:
        has_aware_streams: the server notices partitions and publications during a connection
            (:func:`.notices_partitions`, ``notices_publications``), as of the last
            refresh; false before the first one.
        has_uncopied: refreshes found new tables that are not copied, and the server may send their
            changes only by a new connection of capture.
    """

    def __init__(
        self,
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
        rules: PublicationRules | None,
    ) -> None:
        self._config = config
        self.subscription = subscription
        self._tables = tables
        self._rules = rules
        self._lock = threading.Lock()  # of all that is kept from look to look
        self._changes = CatalogChanges()
        self._filters = FilterTexts()
        self._looked_for: object = None
        self._unknown_names: frozenset[UnknownName] = frozenset()
        self._rewritten: Mapping[int, Mapping[int, int]] = {}
        self.has_aware_streams = False
        self.has_uncopied = False

    def look(self) -> None:
        """Refresh the catalog: find new tables, and tables whose rows changed without changes in
        the stream.

        Raises:
            SourceUnreachable, SourceRefused: the server cannot be queried.
            ConfigError, TableError: see :func:`source_tables`.
        """
        with (
            self._lock,
            self._tables.looking() as is_needed,
            connect_sql(self._config.source.conninfo, application="look") as connection,
            source_errors("looking for tables"),
        ):
            connection.execute(LIMITS)
            self.has_aware_streams = notices_partitions(connection) and notices_publications(
                connection
            )
            identity = Spool.open(self._config.spool.place).identity
            has_changed = self._changes.have_come(connection)
            is_another = self._looked_for != self._subject(identity)
            if not (is_needed or has_changed or is_another or self._waits_unseen()):
                return
            try:
                if not self._look(connection, identity):
                    self.look_anew()
                    self._tables.needs_look |= is_needed
                    return
            except BaseException:
                self.look_anew()
                raise
            self._looked_for = self._subject(identity)

    def look_anew(self) -> None:
        """Let the next refresh read the whole catalog."""
        self._changes.forget()

    def source_tables(
        self, connection: Connection, only: Collection[int] | None = None
    ) -> list[ReplicatedTable]:
        """The published tables, in the connection's snapshot."""
        # The publications that the stream is asked for now: those of pgsluice may have a second
        # one, and a new one joins only when the spool has passed its creation.
        publications = Spool.open(self._config.spool.place).identity.publications
        options = table_options(self.subscription)
        return source_tables(connection, publications, self._rules, options, self._filters, only)

    def put_rules_in_force(self, table: ReplicatedTable) -> None:
        """Use these rules for a table's changes from now on."""
        if self._rules is not None and table.rules is not None:
            self._rules.put_in_force(table.facts.oid, table.rules)

    def _look(self, connection: Connection, identity: SpoolIdentity) -> bool:
        """Refresh, unless the server is on a timeline that capture has not followed yet."""
        known = self._tables.durable.tables
        # What has a position up to this was committed before the snapshot is taken. But for commits
        # that wait for a synchronous standby, the snapshot sees it. Tables whose partitions such a
        # commit truncated are verified by the next look; capture holds other changes (ADR 0027).
        begun_at = insert_lsn(connection)
        with one_snapshot(connection):
            source = self.source_tables(connection)
            options = table_options(self.subscription)
            wal_end, timeline = insert_lsn(connection), wal_timeline(connection)
            if timeline not in (0, identity.timeline):
                return False
            state = SourceState(source, wal_end, timeline, has_rules=self._rules is not None)
            settled = self._settled(source, known)
            look = CatalogLook(connection, identity, state, known, options, settled)
            columns = {
                f"{one.facts.namespace}.{one.facts.name}": [c.name for c in one.facts.columns]
                for one in source
            }
            self._warn_of_unknown_names(columns)
            if not (self.subscription.copy_data or notices_publications(connection)):
                self._warn_of_open_writers(source, known)
            self._refuse_unhidden(source, columns)
            names = names_to_find(self._tables.durable, source)
            found = tables_named(connection, names)
        with self._tables.changing():
            look.record(self._tables, self._new_record, copy_data=self.subscription.copy_data)
            record_completeness(
                self._tables,
                source,
                found,
                identity.publications,
                self._config,
                self.subscription,
            )
            if look.is_whole:
                self._tables.keep_look(begun_at)
            for table in source:
                now = self._tables.get(table.facts.oid)
                if now is not None and now.is_active:
                    self.put_rules_in_force(table)
        return True

    def _warn_of_open_writers(
        self, source: Sequence[ReplicatedTable], known: Mapping[int, TableRecord]
    ) -> None:
        """Log that changes of new tables without a copy may be missing (ADR 0056)."""
        new = [one.facts for one in source if one.facts.oid not in known]
        # A new spool begins with a slot that is newer than its publications.
        if new and (known or self._tables.position > SpoolReader(self._config.spool.place).start()):
            names = [shown(f"{facts.namespace}.{facts.name}") for facts in new]
            logger.warning(
                "%s: not copied (copy_data = false), and this minor release of PostgreSQL may not "
                "send changes that are made before capture connects again\n  → upgrade PostgreSQL "
                "to the minor release of May 2025 or later; to get what is missing, copy the "
                "table: pgsluice copy CONFIG TABLE",
                ", ".join(names),
            )
            self.has_uncopied = True

    def _warn_of_unknown_names(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Log the names in settings that match no table, each once while it lasts."""
        unknown = frozenset(unknown_names(self.subscription, columns))
        for name in sorted(unknown - self._unknown_names, key=str):
            logger.warning("%s: %s", self.subscription.name, name)
        self._unknown_names = unknown

    def _refuse_unhidden(
        self, source: Sequence[ReplicatedTable], columns: Mapping[str, Sequence[str]]
    ) -> None:
        """Refuse masks and exclusions of a table that has another name, or never existed: its
        values would arrive as they are. A missing column concerns its table alone
        (:func:`pgsluice.sinks.target.check_hidden`)."""
        sent = dict(zip(columns, (one.facts.oid for one in source), strict=True))
        names = [*self.subscription.mask, *self.subscription.exclude]
        record = self._tables.durable
        known = {one.title: oid for oid, one in {**record.unpublished, **record.tables}.items()}
        for name in names if sent else ():
            title, _ = table_and_column(name, columns)
            oid = known.get(title)
            if title in sent or (oid is not None and oid not in sent.values()):
                continue
            now = next((other for other, its in sent.items() if its == oid), None)
            raise ConfigError(
                f'subscription "{self.subscription.name}": the option mask or exclude names table '
                f"{shown(title)}, "
                + (
                    "which no publication in use sends"
                    if now is None
                    else f"which has been renamed to {shown(now)}"
                ),
                hint="correct the table's name in mask or exclude, so that no hidden value reaches "
                "the target, and restart `pgsluice run CONFIG`",
            )

    def _settled(
        self, source: Sequence[ReplicatedTable], known: Mapping[int, TableRecord]
    ) -> frozenset[int]:
        """Tables parked because of rewrites, with the same relfilenodes as at the last refresh."""
        before, now = self._rewritten, files_of_rewritten(source, known)
        self._rewritten = now
        return frozenset(oid for oid, files in now.items() if before.get(oid) == files)

    def _waits_unseen(self) -> bool:
        """Whether a table waits for what changes no catalog row: privileges, an end of rewrites."""
        return any(
            table.is_parked and table.parked_for in _UNSEEN
            for table in self._tables.durable.tables.values()
        )

    def _subject(self, identity: SpoolIdentity) -> object:
        """What a refresh depends on in addition to the catalog."""
        record = self._tables.durable
        standing = {
            oid: (
                table.is_active,
                table.is_parked,
                table.is_published,
                table.copy_number,
                table.title,
            )
            for oid, table in {**record.unpublished, **record.tables}.items()
        }
        return identity.publications, identity.timeline, standing

    def _new_record(self, table: ReplicatedTable) -> TableRecord:
        namespace, name = table.facts.namespace, table.facts.name
        return TableRecord(
            namespace,
            name,
            applied_through=self._tables.position,
            target=make_sink(sink_options(self.subscription)).location(namespace, name),
            source=SourceView(relations=table.relations),
        )


def files_of_rewritten(
    source: Sequence[ReplicatedTable], known: Mapping[int, TableRecord]
) -> dict[int, Mapping[int, int]]:
    """The relfilenodes of the tables that are parked because of rewrites during their copies."""
    return {
        table.facts.oid: table.fingerprint.filenodes
        for table in source
        if (record := known.get(table.facts.oid)) is not None
        and record.is_parked
        and record.parked_for == ParkReason.REWRITTEN
    }
