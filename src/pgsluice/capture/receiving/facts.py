"""Relation metadata for the spool: read when a Relation message arrives, and watched for changes.

A Relation message means that the server rebuilt its cache entry of the relation. So its metadata
(facts) is read again, on a separate connection. It is stored after the Relation message, as message
``#``, if it is the first on this connection or has changed. The metadata of a streamed or prepared
transaction is read at the commit, because other sessions cannot see it before. Both wait until the
catalog shows the transaction (:mod:`pgsluice.catalog.visibility`). A watcher polls every
``catalog_poll_s`` for changes without a Relation message, and updates the managed publications.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from pgsluice.catalog import Connection
from pgsluice.catalog.changes import CatalogChanges
from pgsluice.catalog.partitions.bounds import fetch_with_bounds
from pgsluice.catalog.server import flush_lsn
from pgsluice.catalog.visibility import (
    TransactionStatus,
    counts_as_standby,
    sees_transaction,
    transaction_statuses,
)
from pgsluice.errors import PgsluiceError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.spool import FACTS_TAG
from pgsluice.wire import Relation

_OID = struct.Struct(">I")


def facts_message(oid: int, json: str | None) -> bytes:
    """pgsluice's own message ``#`` with a relation's metadata; without any, the metadata is
    unknown."""
    return bytes([FACTS_TAG]) + _OID.pack(oid) + (json or "").encode()


class FactsSource:
    """Reads the relation metadata for one connection's stream.

    Every query raises SourceUnreachable or SourceRefused if the server does not answer it.

    Args:
        silence_s: the timeout for each answer, in seconds; None: no limit.
        application: the application_name of the streaming connection.
    """

    def __init__(
        self, dsn: str, timeout_s: float, silence_s: float | None = None, application: str = ""
    ) -> None:
        self._dsn = dsn
        self._application = application
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._connection: Connection | None = None
        self._known: dict[int, str | None] = {}
        self._changed: deque[tuple[int, str | None, str]] = deque()

    def close(self) -> None:
        """Close the catalog's connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def sees(self, xid: int) -> bool:
        """Whether the catalog shows the changes of a committed transaction."""
        with source_errors("asking for the server's snapshot"):
            return sees_transaction(self._connected(), xid)

    def statuses(self, xids: Collection[int]) -> dict[int, TransactionStatus]:
        """The outcomes of transactions and subtransactions, without those that are too old to
        know."""
        with source_errors("asking how transactions ended"):
            return transaction_statuses(self._connected(), xids)

    def may_be_awaited(self) -> bool:
        """Whether a commit may be waiting for capture's acknowledgement, because the server treats
        capture as a synchronous standby."""
        with source_errors("asking for the server's standbys"):
            return counts_as_standby(self._connected(), self._application)

    def on_relation(self, oid: int, like: Relation | None = None) -> bytes | None:
        """Read the metadata of an announced relation.

        Args:
            like: the announcement, if the catalog may be older; metadata with other columns is then
                dropped.

        Returns:
            the metadata's message, to follow the Relation message; None if it has not changed.
        """
        facts = self._fetch([oid])[oid]
        json = _json(facts if like is None else _if_like(facts, like))
        if oid in self._known and self._known[oid] == json:
            return None
        self._known[oid] = json
        return facts_message(oid, json)

    def at_commit(
        self,
        oids: Iterable[int],
        joining: Collection[int],
        like: Mapping[int, Relation] | None = None,
    ) -> dict[int, RelationFacts | None]:
        """Read the metadata for a streamed or prepared transaction that has committed.

        Args:
            oids: the relations that it changed.
            joining: relations whose announcement is valid for the connection from now on.
            like: their announcements, if the catalog may be older; metadata with other columns is
                then dropped.

        Returns:
            their metadata as of the commit; None: the relation is no longer in the catalog.
        """
        facts = self._fetch(oids)
        if like is not None:
            facts = {oid: _if_like(each, like.get(oid)) for oid, each in facts.items()}
        self._known.update({oid: _json(facts[oid]) for oid in joining if oid in facts})
        return facts

    def known(self) -> dict[int, str | None]:
        """The relations of this connection with their metadata; thread-safe."""
        return dict(self._known)

    def offer(self, oid: int, known: str | None, json: str) -> None:
        """Take the metadata that the watcher found; thread-safe.

        Args:
            known: the metadata before the watcher's query. If a Relation message has brought other
                metadata since then, that is newer.
        """
        if known != json:
            self._changed.append((oid, known, json))

    def take_changed(self) -> list[bytes]:
        """Messages for metadata that changed without a Relation message; stored before the next
        Begin."""
        messages: list[bytes] = []
        while self._changed:
            oid, known, json = self._changed.popleft()
            if self._known.get(oid) == known:
                self._known[oid] = json
                messages.append(facts_message(oid, json))
        return messages

    def flush_lsn(self) -> Lsn:
        """The server's flush LSN (on a standby: its replay LSN)."""
        with source_errors("asking for the server's flush LSN"):
            return flush_lsn(self._connected())

    def _fetch(self, oids: Iterable[int]) -> dict[int, RelationFacts | None]:
        """Read all in one query: a partitioned table may have thousands of partitions."""
        wanted = list(oids)
        with source_errors("reading the catalog"):
            facts = fetch_with_bounds(self._connected(), wanted)
        return {oid: facts.get(oid) for oid in wanted}

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sql(
                self._dsn, timeout_s=self._timeout_s, silence_s=self._silence_s
            )
        return self._connection


def _if_like(facts: RelationFacts | None, relation: Relation | None) -> RelationFacts | None:
    """The metadata, if it has the announced columns; same names may be other columns, so no
    attnums."""
    if facts is None or relation is None:
        return None
    known = {(column.name, column.type_oid, column.typmod) for column in facts.columns}
    sent = {(column.name, column.type_oid, column.typmod) for column in relation.columns}
    return facts.without_numbers() if sent <= known else None


def _json(facts: RelationFacts | None) -> str | None:
    return None if facts is None else facts.to_json()


class CatalogWatch:
    """Polls the catalog in a separate thread while one connection streams.

    Args:
        keep_publications: updates the managed publications over a connection; returns whether
            nothing is left to do until the catalog changes.
        warn: called with a sentence when the catalog could not be queried.
        read_slot: records the state of the slot over a connection.
    """

    def __init__(
        self,
        dsn: str,
        facts: FactsSource,
        every_s: float,
        keep_publications: Callable[[Connection], bool],
        warn: Callable[[str], None],
        read_slot: Callable[[Connection], None],
    ) -> None:
        self._dsn = dsn
        self._facts = facts
        self._every_s = every_s
        self._keep_publications = keep_publications
        self._warn = warn
        self._read_slot = read_slot
        self._changes = CatalogChanges()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgsluice catalog", daemon=True)

    def __enter__(self) -> CatalogWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self._poll()
            except PgsluiceError as error:
                self._changes.forget()
                self._warn(error.what)

    def _poll(self) -> None:
        with connect_sql(self._dsn, application="watch") as connection:
            with source_errors("reading the slot"):
                self._read_slot(connection)
            with source_errors("asking whether the catalog has changed"):
                if not self._changes.have_come(connection):
                    return
            with source_errors("updating the publications"):
                if not self._keep_publications(connection):
                    self._changes.forget()
            known = self._facts.known()
            with source_errors("reading the catalog"):
                facts = fetch_with_bounds(connection, known)
            for oid, now in facts.items():  # changes of a dropped table may still come
                self._facts.offer(oid, known[oid], now.to_json())
