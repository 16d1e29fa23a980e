"""What a copy run reads of the source while statements change it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.config import Config
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import temporary_snapshot
from pgsluice.spool import Owner, RecordStore, Spool, SpoolIdentity, SubscriptionRecord
from pgsluice.subscription.copies.plan import SourceTables, read_source
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.looks import CatalogLooks

_LISTS = "pg_catalog.pg_publication_rel"
_LOCK = f"BEGIN; LOCK TABLE {_LISTS} IN ACCESS EXCLUSIVE MODE"
_WAITING = f"""
SELECT a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.relation = '{_LISTS}'::regclass
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_HELD = f"""
SELECT 1 FROM pg_locks
WHERE granted AND mode = 'AccessExclusiveLock' AND relation = '{_LISTS}'::regclass
"""


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return shop


@pytest.fixture
def site(shop: Database, tmp_path: Path) -> CopySite:
    """Of a subscription to the publication ``p``."""
    sink = {"type": "delta", "path": str(tmp_path / "{table}")}
    config = Config.model_validate(
        {
            "source": {"dsn": shop.dsn},
            "spool": {"path": str(tmp_path / "spool")},
            "subscription": ({"name": "lake", "sink": sink},),
        }
    )
    identity = SpoolIdentity(
        system_identifier="7", timeline=1, database=shop.name, slot="s", publications=("p",)
    )
    Spool.create(config.spool.place, identity)
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1))
    tables = SubscriptionTables(RecordStore.create(config.spool.place, record), lambda _: None)
    looks = CatalogLooks(config, config.subscription("lake"), tables, None)
    unused: Any = None
    return CopySite(config, tables, looks, unused, unused, unused, unused, unused)


def _step(shop: Database, holder: psycopg.Connection, locks: ExitStack) -> psycopg.Connection:
    """Let what waits for the lock run one statement; returns the next holder of the lock."""
    following = locks.enter_context(shop.connect())
    following.pgconn.send_query(_LOCK.encode())
    await_that(lambda: (_LOCK,) in shop.execute(_WAITING))
    holder.execute("COMMIT")
    held = f"{_HELD} AND pid = {following.info.backend_pid}"
    await_that(lambda: bool(shop.execute(held)))
    while following.pgconn.get_result() is not None:
        pass
    return following


@pytest.mark.pg(">= 15")  # row filters
def test_no_row_filter_is_lost_between_two_queries(shop: Database, site: CopySite) -> None:
    shop.execute("CREATE PUBLICATION p FOR TABLE t WHERE (id < 5)")
    ((oid,),) = shop.execute("SELECT 't'::regclass::oid::bigint")
    read: list[SourceTables] = []
    with temporary_snapshot(shop.dsn, 60.0) as snapshot, ExitStack() as locks:
        holder = locks.enter_context(shop.connect())
        holder.execute(_LOCK)
        with beside(lambda _: read.append(read_source(site, snapshot, [oid])[0])):
            await_that(lambda: bool(shop.execute(_WAITING)))
            holder = _step(shop, holder, locks)
            # Before it prints the filter, or after all of this.
            await_that(lambda: bool(shop.execute(_WAITING)))
            holder.execute("ALTER PUBLICATION p SET TABLE t WHERE (id < 7); COMMIT")
    (source,) = read
    assert source.now[oid].row_filter in ("((id < 5))", "((id < 7))")
