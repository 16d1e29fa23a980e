"""Takes the snapshots of copy runs.

On some servers, a replication connection does not notice that a table becomes a partition
(:func:`.notices_partitions`), or that a publication changes
(:func:`.notices_publications`). Until the connection ends, they send no changes of
such a table, or send it as a separate table.

A new connection that starts after the change sends the right changes. So before a snapshot is taken
there, capture receives everything up to now, and then opens a new connection. Changes that the old
connection did not send are in the snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from pgsluice.catalog.partitions.new_partitions import notices_partitions
from pgsluice.catalog.publications.publications import unnoticed_publications
from pgsluice.errors import SourceRefused, SourceUnreachable
from pgsluice.replication import connect_sql
from pgsluice.shown import first_names, shown
from pgsluice.snapshots.snapshot import Snapshot, temporary_snapshot
from pgsluice.subscription.base.received import Received, connect_behind_changes
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.copies.site import CopySite

_SNAPSHOT_TIMEOUT_S = 300.0
_MOST_TRIES = 10
# A table may be attached to any level below one that is copied.
_PARTITIONS = """
SELECT pg_catalog.count(*),
       pg_catalog.md5(pg_catalog.string_agg(
           pg_catalog.concat_ws(' ', i.inhrelid::oid, i.inhparent::oid, i.xmin), ','
           ORDER BY i.inhrelid))
FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS t (oid),
     pg_catalog.pg_partition_tree(t.oid::pg_catalog.regclass) AS p
     JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = p.relid
"""
# Any table may be a partition, or may have been one of a partitioned table that is there.
_HAS_PARTITIONED = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relkind = 'p')
"""


def copy_snapshot(
    site: CopySite, oids: Collection[int], stop: threading.Event
) -> AbstractContextManager[Snapshot | None]:
    """Take a snapshot for these tables; it is valid within the context.

    Returns:
        the snapshot; None: the run is stopping.

    Raises:
        SourceUnreachable, SourceRefused, SpoolFull: no snapshot can be taken now; a later attempt
            may succeed.
    """
    dsn, counts = site.config.source.conninfo, site.counts
    if site.looks.has_aware_streams:
        return new_snapshot(dsn, counts, oids, stop.is_set)
    return behind_changes(dsn, counts, oids, site.received, stop.is_set)


@contextmanager
def new_snapshot(
    dsn: str, counts: CopyCounts, oids: Collection[int], is_stopping: Callable[[], bool]
) -> Iterator[Snapshot]:
    """Take a snapshot, valid within the context; meanwhile the progress shows what tables wait for.

    Raises:
        SourceRefused, SourceUnreachable: as :func:`pgsluice.snapshots.snapshot.temporary_snapshot`.
    """

    waits_for = "a snapshot, which follows the transactions open now"

    def name(blockers: list[str]) -> None:
        nonlocal waits_for
        waits_for = f"a snapshot, which follows the end of: {shown(first_names(blockers))}"

    def tend() -> bool:
        # Only now: a server that refuses at once, again and again, has nothing of these.
        counts.wait(oids, waits_for)
        counts.tend()  # or what is said would be taken for old
        return is_stopping()

    with ExitStack() as held:
        try:
            snapshot = held.enter_context(temporary_snapshot(dsn, _SNAPSHOT_TIMEOUT_S, tend, name))
        except (SourceRefused, SourceUnreachable) as error:
            counts.wait(oids, f"a snapshot; the last try failed: {error.what}")
            raise
        yield snapshot


@contextmanager
def behind_changes(
    dsn: str,
    counts: CopyCounts,
    oids: Collection[int],
    received: Received,
    is_stopping: Callable[[], bool],
) -> Iterator[Snapshot | None]:
    """Take a snapshot after which the stream follows all changes of partitions and publications.

    Args:
        is_stopping: polled; true: give up soon, without a new connection.

    Returns:
        the snapshot; None: the run is stopping, and the stream lacks such changes.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be queried; capture did not receive far
            enough, or could not reconnect; partitions or publications changed all the time; or no
            snapshot could be taken. The tables may be copied later.
        SpoolFull: the spool has no room for the changes that have to be received first.
    """

    def tend() -> bool:
        counts.tend()  # or what is said would be taken for old
        return is_stopping()

    for _ in range(_MOST_TRIES):
        before = _unnoticed(dsn, oids)
        if before.publications is not None:
            # A transaction that is open now has the publications of its start. The server uses
            # them for what follows it, too, so the new connection begins behind its end.
            with new_snapshot(dsn, counts, oids, is_stopping):
                pass
        if before != _NOTHING:
            counts.wait(oids, "capture, which has to receive what was committed until now")
            try:
                is_renewed = connect_behind_changes(dsn, received, tend)
            except SourceUnreachable as error:
                counts.wait(oids, f"capture; the last try failed: {error.what}")
                raise
            if not is_renewed:
                yield None
                return
        with new_snapshot(dsn, counts, oids, is_stopping) as taken:
            if before == _NOTHING or is_stopping() or before == _unnoticed(dsn, oids):
                yield taken
                return
    raise SourceUnreachable(
        f"pgsluice took {_MOST_TRIES} snapshots of the tables to copy, and partitions of the "
        "tables, or publications, changed during each",
        hint="pgsluice retries the copy, and the target tables keep their rows meanwhile. If this "
        "repeats, do not create, attach or detach partitions, nor alter publications, until the "
        "copy has begun",
    )


class _Unnoticed(NamedTuple):
    """What the server does not notice in a connection, as it is now; None: the server does."""

    partitions: Any = None
    publications: Any = None


_NOTHING = _Unnoticed()


def _unnoticed(dsn: str, oids: Collection[int]) -> _Unnoticed:
    partitions = None
    with connect_sql(
        dsn, "asking for changes before copies", application="changes before copies"
    ) as connection:
        if not notices_partitions(connection):
            has_partitioned = connection.execute(_HAS_PARTITIONED).fetchall() == [(True,)]
            if has_partitioned:
                partitions = connection.execute(_PARTITIONS, [list(oids)]).fetchone()
        return _Unnoticed(partitions, unnoticed_publications(connection))
