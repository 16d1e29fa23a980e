"""Where a subscription's batches end."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.spool.small_spool import make_small_spool
from tests.subscription.running.test_driver import config_of
from tests.support.object_stores import ObjectStore
from tests.support.spools import OID, START, SpoolMaker, configured, orders, transactional
from tests.support.transactions import BEGINNING, insert, raw
from tests.support.transactions import transaction as tx
from tests.support.waiting import HANGS_S, await_that

from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader, SpoolWriter, find_record
from pgsluice.spool.layout import subscription_folder
from pgsluice.stores.spool_place import SpoolPlace
from pgsluice.subscription.base.barrier import BarrierOwner
from pgsluice.subscription.base.work import TableWork
from pgsluice.subscription.batches.ends import BatchEnds
from pgsluice.subscription.batches.planning import plan_tables

FIRST = Lsn(START)


def ends_of(maker: SpoolMaker, **keys: int) -> BatchEnds:
    return BatchEnds(SpoolReader(maker.path), config_of(maker, **keys).subscription("lake"))


def planned(maker: SpoolMaker, end: Lsn) -> list[TableWork]:
    """The work of a batch, as the driver plans it."""
    record = find_record(maker.path, "q")
    assert record is not None
    return plan_tables(SpoolReader(maker.path), record, end)


def test_a_batch_takes_what_the_spool_has(maker: SpoolMaker) -> None:
    configured(maker)
    ends = ends_of(maker)
    assert ends.after(FIRST) == FIRST
    maker.segment(orders(1))
    end = maker.segment(orders(2))
    assert ends.after(FIRST) == end
    assert ends.after(end) == end
    (work,) = planned(maker, end)
    assert work.relation_oid == OID
    assert work.size_bytes > 0


def test_a_batch_ends_with_the_segment_that_reaches_a_limit(maker: SpoolMaker) -> None:
    first = maker.segment(orders(1, 2))
    second = maker.segment(orders(3, 4, 5))
    third = maker.segment(orders(6))
    for limit, end in (({"max_rows_per_batch": 1}, first), ({"max_rows_per_batch": 2}, first)):
        assert ends_of(maker, **limit).after(FIRST) == end
    assert ends_of(maker, max_rows_per_batch=3).after(FIRST) == second
    assert ends_of(maker, max_bytes_per_batch=1).after(first) == second
    assert ends_of(maker, max_rows_per_batch=100).after(FIRST) == third


def test_messages_advance_a_subscription_and_are_no_tables_work(maker: SpoolMaker) -> None:
    configured(maker)
    maker.message("outbox", b"alone")
    end = maker.segment([transactional("outbox", b"in a transaction")])
    assert ends_of(maker).after(FIRST) == end
    assert planned(maker, end) == []


def test_a_batch_ends_inside_a_segment_at_a_barrier(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    inside = Lsn(int(end) - 1)
    ends = ends_of(maker)
    with BarrierOwner(subscription_folder(maker.path, "lake"), ()) as owner:
        owner.move(inside)
        assert ends.after(FIRST) == inside
        assert ends.after(inside) == inside
    assert ends.after(inside) == end


def test_batches_of_a_spool_in_a_store_are_apart_but_for_a_backlog(
    maker: SpoolMaker, s3_store: ObjectStore, tmp_path: Path
) -> None:
    """Each saves the record there, by a paid request."""
    place = SpoolPlace(tmp_path / "state", f"s3://lake/{uuid.uuid4()}", s3_store.options)
    reader = SpoolReader(make_small_spool(place).place)
    newest = reader.position()
    ends = BatchEnds(reader, config_of(maker).subscription("lake"), HANGS_S)
    limited = config_of(maker, max_rows_per_batch=1).subscription("lake")
    behind = BatchEnds(reader, limited, HANGS_S)
    first = behind.after(BEGINNING)
    assert first < behind.after(first)
    assert ends.after(BEGINNING) == newest
    with SpoolWriter(reader.spool) as writer:
        writer.append(raw(tx(9000, [insert(5, b"three")])))
    await_that(lambda: reader.position() > newest, "the listing is a new one")
    assert ends.after(newest) == newest
    assert BatchEnds(reader, config_of(maker).subscription("lake")).after(newest) > newest
