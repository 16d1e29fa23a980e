"""Facts of relations for the spool: looked up when an R comes, and watched for changes.

A Relation message says that the server rebuilt its cache entry of the relation. So its facts are
looked up again, on a connection of their own, and stand in the spool behind the R (message ``#``)
if they are the first on this connection or have changed. The facts of a transaction that comes
before its commit are looked up at the commit, because nobody else can see them before. Either is
done only when the catalog shows the transaction (:mod:`pgsluice.catalog.visibility`). A watcher
polls every ``catalog_poll_s`` for changes that no R announces, and keeps the publications in step.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import psycopg

from pgsluice.catalog import (
    CatalogChanges,
    TransactionStatus,
    counts_as_standby,
    fetch_with_bounds,
    flush_lsn,
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
    """Our own message: a relation's facts; without any they are unknown."""
    return bytes([FACTS_TAG]) + _OID.pack(oid) + (json or "").encode()


class FactsSource:
    """Facts for one connection's stream.

    Args:
        dsn: of the source.
        timeout_s: for connecting.
        silence_s: for each answer; None: as long as it takes.
        application: the application_name of the connection that streams.
    """

    def __init__(
        self, dsn: str, timeout_s: float, silence_s: float | None = None, application: str = ""
    ) -> None:
        self._dsn = dsn
        self._application = application
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._connection: psycopg.Connection[Any] | None = None
        self._known: dict[int, str | None] = {}
        self._changed: deque[tuple[int, str | None, str]] = deque()

    def close(self) -> None:
        """Close the catalog's connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def sees(self, xid: int) -> bool:
        """Whether the catalog shows what a committed transaction did.

        Raises:
            SourceUnreachable, SourceRefused: it could not be asked.
        """
        with source_errors("asking for the server's snapshot"):
            return sees_transaction(self._connected(), xid)

    def statuses(self, xids: Collection[int]) -> dict[int, TransactionStatus]:
        """How transactions and subtransactions ended; without those that are too long ago.

        Raises:
            SourceUnreachable, SourceRefused: it could not be asked.
        """
        with source_errors("asking how transactions ended"):
            return transaction_statuses(self._connected(), xids)

    def may_be_awaited(self) -> bool:
        """Whether a commit may wait until capture acknowledges it, because the server takes the
        connection for a synchronous standby.

        Raises:
            SourceUnreachable, SourceRefused: it could not be asked.
        """
        with source_errors("asking for the server's standbys"):
            return counts_as_standby(self._connected(), self._application)

    def on_relation(self, oid: int, like: Relation | None = None) -> bytes | None:
        """A relation was announced.

        Args:
            like: the announcement, if the catalog may be older: other facts are unknown then.

        Returns:
            the facts' message to stand behind its R; None when they have not changed.

        Raises:
            SourceUnreachable, SourceRefused: the catalog could not be asked.
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
        """A transaction that came before its commit is committed now.

        Args:
            oids: the relations that it changed.
            joining: those whose announcement now counts for the connection.
            like: their announcements, if the catalog may be older: other facts are unknown then.

        Returns:
            their facts as of the commit; None: the catalog has no such relation any more.

        Raises:
            SourceUnreachable, SourceRefused: the catalog could not be asked.
        """
        facts = self._fetch(oids)
        if like is not None:
            facts = {oid: _if_like(each, like.get(oid)) for oid, each in facts.items()}
        self._known.update({oid: _json(facts[oid]) for oid in joining if oid in facts})
        return facts

    def known(self) -> dict[int, str | None]:
        """The relations that came on this connection, and their facts; from any thread."""
        return dict(self._known)

    def offer(self, oid: int, known: str | None, json: str) -> None:
        """The watcher found these facts; from any thread.

        Args:
            oid: the relation.
            known: its facts before the watcher looked. Should an R have brought others
                meanwhile, those are newer.
            json: what it found.
        """
        if known != json:
            self._changed.append((oid, known, json))

    def take_changed(self) -> list[bytes]:
        """Messages for facts that changed without an R; they are stored before the next Begin."""
        messages: list[bytes] = []
        while self._changed:
            oid, known, json = self._changed.popleft()
            if self._known.get(oid) == known:
                self._known[oid] = json
                messages.append(facts_message(oid, json))
        return messages

    def flush_lsn(self) -> Lsn:
        """How far the server's WAL is flushed (on a standby: replayed).

        Raises:
            SourceUnreachable, SourceRefused: it could not be asked.
        """
        with source_errors("asking for the server's flush LSN"):
            return flush_lsn(self._connected())

    def _fetch(self, oids: Iterable[int]) -> dict[int, RelationFacts | None]:
        """Look all of them up in one query: a partitioned table may have thousands of leaves."""
        wanted = list(oids)
        with source_errors("reading the catalog"):
            facts = fetch_with_bounds(self._connected(), wanted)
        return {oid: facts.get(oid) for oid in wanted}

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sql(
                self._dsn, timeout_s=self._timeout_s, silence_s=self._silence_s
            )
        return self._connection


def _if_like(facts: RelationFacts | None, relation: Relation | None) -> RelationFacts | None:
    """The facts, if they have the columns that the announcement has. Columns of the same names may
    be others there, so that the numbers say nothing."""
    if facts is None or relation is None:
        return None
    known = {(column.name, column.type_oid, column.typmod) for column in facts.columns}
    sent = {(column.name, column.type_oid, column.typmod) for column in relation.columns}
    return facts.without_numbers() if sent <= known else None


def _json(facts: RelationFacts | None) -> str | None:
    return None if facts is None else facts.to_json()


class CatalogWatch:
    """Polls the catalog on a thread of its own while one connection streams.

    Args:
        dsn: of the source.
        facts: takes what changed.
        every_s: how often.
        keep_publications: brings the publications into step, given a connection; says whether
            nothing is left to do until the catalog changes.
        warn: called with a sentence when the catalog could not be asked.
    """

    def __init__(
        self,
        dsn: str,
        facts: FactsSource,
        every_s: float,
        keep_publications: Callable[[psycopg.Connection[Any]], bool],
        warn: Callable[[str], None],
    ) -> None:
        self._dsn = dsn
        self._facts = facts
        self._every_s = every_s
        self._keep_publications = keep_publications
        self._warn = warn
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
