"""A spool in an object store: the same content, one writer, few requests."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.spool.small_spool import SUBSCRIPTION, make_small_spool, read_chain, read_prepared
from tests.spool.small_spool import read_state as state_of
from tests.support.children import Child
from tests.support.object_stores import ObjectStore
from tests.support.store_proxy import Fault, StoreProxy, store_proxy
from tests.support.transactions import BEGINNING, insert, raw, relation
from tests.support.transactions import transaction as tx
from tests.support.waiting import HANGS_S, await_that

from pgsluice.errors import ForeignSpool, SpoolBusy, SpoolError, SpoolHole, SpoolTaken
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Owner,
    RecordStore,
    Spool,
    SpoolIdentity,
    SpoolReader,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    find_record,
)
from pgsluice.spool import object_storage as module
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.layout import SEGMENTS, forget_spool, forget_subscription, subscription_names
from pgsluice.spool.object_storage import ListingAges, ObjectStorage, folder_of
from pgsluice.spool.records import objects
from pgsluice.spool.segments.retention import Retention
from pgsluice.stores.contract import StoreError
from pgsluice.stores.spool_place import SpoolPlace

ONE_TRY = {"max_retries": "0", "retry_timeout": "1s", "timeout": "2s"}


@pytest.fixture
def place(s3_store: ObjectStore, tmp_path: Path) -> SpoolPlace:
    return SpoolPlace(tmp_path / "state", f"s3://lake/{uuid.uuid4()}", s3_store.options)


@pytest.fixture
def proxy(s3_store: ObjectStore) -> Iterator[StoreProxy]:
    with store_proxy(s3_store.endpoint) as proxy:
        yield proxy


def by(place: SpoolPlace, proxy: StoreProxy, store: ObjectStore) -> SpoolPlace:
    """The same place, reached by a proxy, whose faults are seen at once."""
    return replace(place, options={**store.at(proxy.endpoint), **ONE_TRY})


def elsewhere(place: SpoolPlace, folder: str = "other") -> SpoolPlace:
    """The same spool from another machine."""
    return replace(place, folder=place.folder.with_name(folder))


def new_spool(place: SpoolPlace) -> Spool:
    identity = SpoolIdentity(system_identifier="7", timeline=1, database="shop", slot="s")
    spool = Spool.create(place, identity)
    spool.register_start(BEGINNING)
    return spool


def segment(end: int) -> object:
    return raw(tx(end, [relation(5), insert(5, b"%d" % end)]))


def record(position: int = 1500, **changes: object) -> SubscriptionRecord:
    table = TableRecord("public", "t5", applied_through=Lsn(position))
    made = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", BEGINNING, Lsn(position), {5: table}
    )
    return replace(made, **changes)


def ends(reader: SpoolReader) -> list[int]:
    return [int(info.end) for info in reader.all_segments()]


# Content


def test_all_kinds_of_files_are_read_as_on_a_disk(place: SpoolPlace, tmp_path: Path) -> None:
    """The machine's folder has no file of it, so any machine reads the same."""
    local = make_small_spool(tmp_path / "local")
    make_small_spool(place)
    there = elsewhere(place)
    chain = [(start, end, views) for start, end, _, views in read_chain(local.path)]
    assert [(start, end, views) for start, end, _, views in read_chain(there)] == chain
    assert read_prepared(there) == read_prepared(local.path)
    assert state_of(there) == state_of(local.path)
    assert [each.name for each in Spool.open(there).subscriptions()] == [SUBSCRIPTION, "other"]


def test_what_is_no_spool_is_said(place: SpoolPlace) -> None:
    assert not Spool.exists(place)
    with pytest.raises(SpoolError, match=f"{place.url} is not a spool"):
        Spool.open(place)
    new_spool(place)
    with pytest.raises(ForeignSpool, match="is already a spool"):
        new_spool(place)


def test_a_missing_segment_is_a_hole_that_names_it(place: SpoolPlace) -> None:
    with SpoolWriter(new_spool(place)) as writer:
        for end in (2000, 3000):
            writer.append(segment(end))
    first, _ = folder_of(place).tree(f"{SEGMENTS}/")
    folder_of(place).delete(first.name)
    with pytest.raises(SpoolHole, match="lacks the changes between 0/3E8 and 0/7D0"):
        SpoolReader(place).segments(BEGINNING)


def test_a_damaged_segment_is_refused(place: SpoolPlace) -> None:
    with SpoolWriter(new_spool(place)) as writer:
        writer.append(raw(tx(2000, [relation(5), insert(5, b"payload")])))
    folder = folder_of(place)
    [stored] = folder.tree(f"{SEGMENTS}/")
    data = folder.read(stored.name)
    at = data.index(b"payload")
    folder.replace(stored.name, data[:at] + b"9" + data[at + 1 :], stored.tag)
    with pytest.raises(SpoolHole, match="checksum"):
        list(SpoolReader(place).views_between(BEGINNING))


def test_a_large_segment_gives_its_header_by_one_small_request(
    place: SpoolPlace, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    with SpoolWriter(new_spool(place)) as writer:
        writer.append(raw(tx(2000, [relation(5), insert(5, b"x" * 2**20)])))
    reader = SpoolReader(by(place, proxy, s3_store))
    [info] = reader.all_segments()
    proxy.requests.clear()
    assert info.header.counts.relations[5].inserts == 1
    assert [request.method for request in proxy.requests] == ["GET"]


def test_everything_is_deleted_and_nothing_else(place: SpoolPlace) -> None:
    make_small_spool(place)
    folder_of(place).create("of-others.json", b"{}")
    forget_subscription(place, "other")
    assert subscription_names(place) == [SUBSCRIPTION]
    assert forget_spool(place)
    assert [stored.name for stored in folder_of(place).tree()] == ["of-others.json"]
    assert not forget_spool(place)


# Writers


def test_a_writer_ends_when_another_machine_has_opened_the_spool(place: SpoolPlace) -> None:
    spool = new_spool(place)
    with SpoolWriter(spool) as first:
        first.append(segment(2000))
        first.check_epoch()
        retention = Retention(first, lambda _: None, {})
        retention.step()
        with SpoolWriter(Spool.open(elsewhere(place))) as second:
            assert second.epoch == first.epoch + 1
            second.append(segment(3000))
            with pytest.raises(SpoolTaken, match="another capture process writes to the spool"):
                first.check_epoch()
            with pytest.raises(SpoolTaken, match="another capture process writes to the spool"):
                retention.step()
            second.advance_frontier(Lsn(3500))
            with pytest.raises(SpoolTaken, match=r"has replaced .*frontier\.json"):
                first.advance_frontier(Lsn(9000))
            # A late segment is a duplicate: it is of the same stream.
            first.append(segment(3000))
    reader = SpoolReader(place)
    assert ends(reader) == [2000, 3000, 3000]
    assert reader.frontier() == 3500
    assert [view.end for view in reader.views_between(BEGINNING)] == [2000, 3000]


def test_a_writer_whose_slot_another_one_has_changes_nothing(place: SpoolPlace) -> None:
    make_small_spool(place)
    before = {stored.name for stored in folder_of(place).tree()}

    def refuse() -> None:
        raise SpoolBusy("the slot is in use")

    with pytest.raises(SpoolBusy, match="in use"):
        SpoolWriter(Spool.open(elsewhere(place)), confirm=refuse)
    assert {stored.name for stored in folder_of(place).tree()} == before


def test_a_lost_answer_is_no_error(
    place: SpoolPlace, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    new_spool(place)
    options = {**s3_store.at(proxy.endpoint), "max_retries": "1", "timeout": "2s"}
    with SpoolWriter(Spool.open(replace(place, options=options))) as writer:
        for number, fault in enumerate((Fault.ERROR, Fault.DROP, Fault.DROP_BEFORE)):
            proxy.fault_next(fault)
            writer.append(segment(2000 + number))
            proxy.fault_next(fault)
            writer.advance_frontier(Lsn(2500 + 10 * number))
    reader = SpoolReader(place)
    assert (ends(reader), reader.frontier()) == ([2000, 2001, 2002], 2520)


# Listings


def listing(place: SpoolPlace, ages: ListingAges) -> SpoolReader:
    """A reader that lists the spool by another pace."""
    spool = Spool.open(place)
    spool.storage = ObjectStorage(place, ages)
    return SpoolReader(spool)


def test_a_reader_lists_once_a_second_and_after_an_announcement(
    place: SpoolPlace,
    proxy: StoreProxy,
    s3_store: ObjectStore,
) -> None:
    seldom = ListingAges(busy_s=1000.0, announced_s=1000.0)
    new_spool(place)
    here = listing(by(place, proxy, s3_store), seldom)
    there = listing(elsewhere(by(place, proxy, s3_store)), seldom)
    assert (ends(here), ends(there)) == ([], [])
    with SpoolWriter(Spool.open(place)) as writer:
        writer.append(segment(2000))
        assert (ends(here), ends(there)) == ([2000], [])
        proxy.requests.clear()
        assert ends(here) == [2000]
        assert proxy.requests == []
        assert there.frontier() == 2000  # asks anew
        writer.append(segment(3000))
        assert SpoolReader(there.spool.place).position() == 3000, "a new reader asks anew"
        assert [info.end for info in there.segments(Lsn(2000), Lsn(3000))] == [3000]


def test_an_idle_spool_is_listed_less_often(
    place: SpoolPlace, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    new_spool(place)
    there = elsewhere(by(place, proxy, s3_store))
    always, seldom = ListingAges(busy_s=0.0), ListingAges(0.0, idle_s=1000.0, idle_after_s=0.0)
    for ages, requests in ((always, 3), (seldom, 1)):
        reader = listing(there, ages)
        proxy.requests.clear()
        for _ in range(3):
            assert ends(reader) == []
        assert len(proxy.requests) == requests


def test_a_long_listing_is_continued(place: SpoolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ENTRIES", 2)
    monkeypatch.setattr(module, "shard_now", lambda: next(hours))
    hours = iter(["2026010102", "2026010102", "2026010103", "2026010101", "2026010101"])
    new_spool(place)
    reader = listing(elsewhere(place), ListingAges(busy_s=0.0))
    with SpoolWriter(Spool.open(place)) as writer:
        for end in range(2000, 7000, 1000):
            writer.append(segment(end))
            assert ends(reader)[-1] == end
        assert writer.release(Lsn(4000)) == 3
    assert ends(reader)[-1] == 6000
    assert ends(SpoolReader(place)) == [5000, 6000]


def test_a_writer_lists_nothing_again(
    place: SpoolPlace, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    new_spool(place)
    RecordStore.create(place, record(1500))
    with SpoolWriter(Spool.open(by(place, proxy, s3_store))) as writer:
        retention = Retention(writer, lambda _: None, {"lake": True})
        for end in range(2000, 6000, 1000):
            writer.append(segment(end))
        retention.step()
        proxy.requests.clear()
        writer.append(segment(6000))
        assert [request.method for request in proxy.requests] == ["PUT"]
        proxy.requests.clear()
        retention.step()  # the epoch; the names of records, and those of one
        assert [request.method for request in proxy.requests] == ["GET"] * 3
        assert writer.size_bytes() == sum(
            stored.size for stored in folder_of(place).tree(f"{SEGMENTS}/")
        )


# Records


def test_a_record_is_what_was_saved_last(
    place: SpoolPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "WHOLE_EVERY", 4)
    new_spool(place)
    assert find_record(place, "lake") is None
    store = RecordStore.create(place, record())
    known = Spool.open(elsewhere(place))
    for position in range(1501, 1520):
        store.save(record(position))
        assert known.subscription("lake") == record(position) == find_record(place, "lake")
        if position % 7 == 0:
            store = RecordStore.open(elsewhere(place), "lake")
    same = known.subscription("lake")
    store.save(record(1519))
    assert known.subscription("lake") is same, "nothing has changed"
    assert len(folder_of(place, "records/lake").entries()) <= 8


def test_one_of_two_runs_saves_a_record(place: SpoolPlace) -> None:
    new_spool(place)
    first = RecordStore.create(place, record())
    second = RecordStore.open(elsewhere(place), "lake")
    second.save(record(1600))
    with pytest.raises(SpoolTaken, match="another `pgsluice run` replicates subscription lake"):
        first.save(record(1700))
    with pytest.raises(SpoolTaken):
        RecordStore.create(place, record()) and first.save(record(1700))
    second = RecordStore.open(place, "lake")
    second.save(record(1800))
    assert find_record(place, "lake") == record(1800)


def test_a_save_that_failed_may_still_appear(
    place: SpoolPlace, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    """The store has it, and the client saw errors only: also when it asked whether it is there."""
    new_spool(place)
    store = RecordStore.create(by(place, proxy, s3_store), record())
    for position, fault in ((1600, Fault.ERROR), (1700, Fault.REFUSED_BEFORE)):
        proxy.fault_next(fault, method="", times=20)
        with pytest.raises(StoreError):
            store.save(record(position))
        proxy.choose = None
        store.save(record(position + 50))
        assert find_record(place, "lake") == record(position + 50)


def test_a_subscription_that_was_dropped_begins_anew(place: SpoolPlace) -> None:
    new_spool(place)
    known = Spool.open(elsewhere(place))
    for _ in range(2):
        store = RecordStore.create(place, record())
        for position in (1600, 1700):
            store.save(record(position))
        assert known.subscription("lake") == record(1700)
        forget_subscription(place, "lake")
        if _:
            assert known.subscription("lake") is None


def test_a_damaged_record_is_refused(place: SpoolPlace) -> None:
    new_spool(place)
    RecordStore.create(place, record())
    folder = folder_of(place, "records/lake")
    [stored] = folder.entries()
    folder.replace(stored.name, folder.read(stored.name).replace(b"1500", b"1501"), stored.tag)
    folder.replace(stored.name, folder.read(stored.name)[:-9] + b"}", folder.stat(stored.name).tag)
    with pytest.raises(SpoolError, match=r"checksum of 000000000001\.json is wrong"):
        find_record(place, "lake")


# Machines


def test_commands_learn_where_a_run_is(place: SpoolPlace) -> None:
    new_spool(place)
    there = elsewhere(place)
    with ActiveRun(place, "lake"):
        ActiveRun(place, "lake").refuse_elsewhere()
        with pytest.raises(SpoolBusy, match=f"`pgsluice run` on host .*{place.folder}"):
            ActiveRun(there, "lake").refuse_elsewhere()
        with ActiveRun(there, "lake"):  # takes it over
            assert ActiveRun(place, "lake").is_elsewhere()
        assert not ActiveRun(place, "lake").is_elsewhere()
    assert not ActiveRun(there, "lake").is_elsewhere()


def test_a_run_shows_that_it_is_there(place: SpoolPlace) -> None:
    new_spool(place)
    folder = folder_of(place)

    def beats() -> int:
        return int(json.loads(folder.read("runs/lake.json"))["beats"])

    with ActiveRun(place, "lake", 0.05):
        await_that(lambda: beats() > 1, "it writes the object again")
        with ActiveRun(there := elsewhere(place), "lake", 0.05):
            await_that(lambda: beats() > 1, "so does the run that took it over")
            assert ActiveRun(place, "lake").is_elsewhere(), "only that one does"
    assert folder.stat("runs/lake.json") is None
    assert not ActiveRun(there, "lake").is_elsewhere()


def test_a_killed_run_does_not_refuse_commands_elsewhere_for_good(place: SpoolPlace) -> None:
    new_spool(place)
    assert Child(_killed_in_a_run, place).wait(HANGS_S) == -signal.SIGKILL
    there = ActiveRun(elsewhere(place), "lake")
    assert there.is_elsewhere()

    def is_accepted() -> bool:
        with suppress(SpoolBusy):
            there.refuse_elsewhere()
            return True
        return False

    await_that(is_accepted, "it counts as killed")
    assert [each.name for each in folder_of(place).tree("runs/")] == ["runs/lake.json"]


def _killed_in_a_run(place: SpoolPlace) -> None:
    with ActiveRun(place, "lake", 0.1):
        os.kill(os.getpid(), signal.SIGKILL)
