"""Writing and reading a spool: the chain, its bounds, relations in force, parts."""

from __future__ import annotations

import fcntl
import shutil
import stat
import threading
from dataclasses import replace

import pytest
from tests.support.transactions import (
    BEGINNING,
    begin,
    commit,
    facts,
    insert,
    new_spool,
    raw,
    relation,
)
from tests.support.transactions import transaction as tx

from pgsluice import failpoints
from pgsluice.errors import ForeignSpool, SpoolBusy, SpoolError, SpoolFull, SpoolHole
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages, Spool, SpoolIdentity, SpoolReader, SpoolWriter
from pgsluice.spool.formats import decode_json, encode_json
from pgsluice.spool.layout import SEGMENTS
from pgsluice.spool.lock import FileLock


@pytest.fixture
def spool(tmp_path):
    return new_spool(tmp_path / "spool")


def read(reader, start=BEGINNING, end=None):
    """(position, message) of all rows in (start, end]."""
    rows = []
    for view in reader.views_between(start, end):
        block = view.block
        rows += [
            (int(block.positions[i]), block.message(i))
            for i in range(len(block))
            if block.tags[i] == ord("I")
        ]
    return rows


def some_facts(oid, root=None):
    return RelationFacts(
        oid, "public", f"t{oid}", "r", root or oid, "public", "root", ("v",), ("v",), "d", 1, ()
    )


def test_transactions_are_read_in_the_order_of_writing(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [relation(5), insert(5, b"a")]), tx(3000, [insert(5, b"b")])))
        info = writer.append(raw(tx(4000, [insert(5, b"c")])))
        assert (info.start, info.end) == (3000, 4000)
    reader = SpoolReader(spool.path)
    assert reader.position() == reader.frontier() == 4000
    assert read(reader) == [
        (2000, insert(5, b"a")), (3000, insert(5, b"b")), (4000, insert(5, b"c")),
    ]  # fmt: skip


def test_a_range_may_begin_and_end_inside_a_segment(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(*(tx(n * 1000, [insert(5, b"%d" % n)]) for n in range(2, 8))))
    reader = SpoolReader(spool.path)
    assert [position for position, _ in read(reader, Lsn(3000), Lsn(5000))] == [4000, 5000]
    assert [position for position, _ in read(reader, Lsn(3500), Lsn(3600))] == []
    assert reader.segments(Lsn(7000)) == []


def test_each_segment_has_the_relations_in_force_before_it(spool):
    first, second = relation(5, "v"), relation(5, "v", "w")
    known = some_facts(5, root=4)
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [first, facts(5, known.to_json()), insert(5)])))
        middle = [insert(5, b"before"), second, facts(5), insert(5, b"after")]
        writer.append(raw(tx(3000, middle), tx(4000, [insert(5)])))
        writer.append(raw(tx(5000, [insert(5)])))
    reader = SpoolReader(spool.path)
    views = [view for info in reader.segments(BEGINNING) for view in reader.views(info)]
    assert views[0].relations == {}
    assert (views[1].relations[5].relation, views[1].relations[5].facts) == (first, known)
    assert (views[2].relations[5].relation, views[2].relations[5].facts) == (second, None)
    assert [info.header.roots for info in reader.segments(BEGINNING)] == [{5: 4}, {5: 5}, {5: 5}]
    # The same holds for a view that begins inside the second segment.
    (inside,) = reader.views(reader.segments(Lsn(3000), Lsn(4000))[0], Lsn(3000))
    assert inside.relations[5].relation == second
    assert inside.block.tags.tobytes() == b"BIC"


def test_a_new_connection_forgets_relations(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [relation(5), insert(5)])))
        writer.forget_connection()
        info = writer.append(raw(tx(3000, [insert(5)])))
    assert info.header.relations == {}


def test_facts_without_a_transaction_write_no_segment_but_hold_for_the_next(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [relation(5), insert(5)])))
        assert writer.append(raw([(0, facts(5, some_facts(5).to_json()))])) is None
        info = writer.append(raw(tx(3000, [insert(5)])))
    assert info.header.relations[5].facts == some_facts(5)


def test_resent_transactions_are_dropped(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)]), tx(3000, [insert(5)])))
        assert writer.append(raw(tx(3000, [insert(5)]))) is None
        info = writer.append(raw(tx(3000, [relation(5), insert(5)]), tx(4000, [insert(5)])))
    assert (info.start, info.end, info.header.counts.changes) == (3000, 4000, 1)
    assert 5 in info.header.relations
    assert [position for position, _ in read(SpoolReader(spool.path))] == [2000, 3000, 4000]


def test_a_missing_segment_is_reported_as_a_hole(spool):
    with SpoolWriter(spool) as writer:
        infos = [writer.append(raw(tx(n, [insert(5)]))) for n in (2000, 3000, 4000)]
    (spool.path / infos[1].name).unlink()
    reader = SpoolReader(spool.path)
    with pytest.raises(SpoolHole, match=r"0/7D0") as caught:
        reader.segments(BEGINNING)
    assert caught.value.path == infos[2].name
    assert len(reader.segments(Lsn(3000))) == 1
    assert len(reader.segments(BEGINNING, Lsn(2000))) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: b"", lambda data: b"x" * 99]
)
def test_an_error_names_an_unreadable_segment(spool, damage):
    with SpoolWriter(spool) as writer:
        info = writer.append(raw(tx(2000, [insert(5)])))
    path = spool.path / info.name
    path.write_bytes(damage(path.read_bytes()))
    reader = SpoolReader(spool.path)
    (damaged,) = reader.segments(BEGINNING)
    with pytest.raises(SpoolHole, match=path.name):
        list(reader.views(damaged))


def test_segments_that_are_kept_are_read_once(spool):
    """Many tables read the same segments."""
    with SpoolWriter(spool) as writer:
        infos = [writer.append(raw(tx(n, [insert(5)]))) for n in (2000, 3000)]
    sizes = [(spool.path / info.name).stat().st_size for info in infos]
    keeps, forgets = SpoolReader(spool.path, keep_bytes=sum(sizes) - 1), SpoolReader(spool.path)
    first, second = keeps.segments(BEGINNING)
    assert read(keeps) == read(forgets)
    for info in infos:
        (spool.path / info.name).unlink()
    assert len(list(keeps.views(first))) == 1
    for reader, info in ((keeps, second), (forgets, first)):  # there was no room for both
        with pytest.raises(SpoolHole):
            list(reader.views(info))


def test_a_range_outside_of_the_spool_is_refused(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)])))
        writer.advance_frontier(Lsn(2500))
    reader = SpoolReader(spool.path)
    assert reader.frontier() == 2500
    assert len(reader.segments(BEGINNING, Lsn(2500))) == 1
    with pytest.raises(SpoolHole, match="no longer has the changes from"):
        reader.segments(Lsn(BEGINNING - 1))
    with pytest.raises(SpoolHole, match="ends at"):
        reader.segments(BEGINNING, Lsn(2501))


def test_overlapping_segments_are_read_once(spool):
    """On an object store, an old writer may still write after a new one has started."""
    with SpoolWriter(spool) as writer:
        info = writer.append(raw(tx(2000, [insert(5)])))
    other = Spool.create(spool.path.parent / "other", spool.identity)
    other.register_start(BEGINNING)
    with SpoolWriter(other) as writer:
        overlapping = writer.append(raw(tx(2000, [insert(5)]), tx(3000, [insert(5)])))
    target = spool.path / info.name
    (other.path / overlapping.name).rename(target.with_name(overlapping.name.rpartition("/")[2]))
    reader = SpoolReader(spool.path)
    assert [position for position, _ in read(reader)] == [2000, 3000]
    assert [position for position, _ in read(reader, BEGINNING, Lsn(2000))] == [2000]
    assert [position for position, _ in read(reader, Lsn(2000), Lsn(3000))] == [3000]


def test_a_reader_sees_each_new_segment(spool):
    reader = SpoolReader(spool.path)
    assert reader.position() == BEGINNING
    with SpoolWriter(spool) as writer:
        for n in range(2, 30):
            writer.append(raw(tx(n * 1000, [insert(5)])))
            assert reader.position() == n * 1000
            # Whoever polls a folder compares nothing while nothing changes.
            assert spool.storage.entries(SEGMENTS) is spool.storage.entries(SEGMENTS)


def parts(writer, key="k", end=5000):
    writer.parts.append(
        key,
        RawMessages.from_messages([(0, begin(end)), (0, relation(5)), (0, insert(5, b"1"))]),
        xid=7,
    )
    writer.parts.append(
        key, RawMessages.from_messages([(0, insert(5, b"2")), (0, insert(5, b"3"))]), xid=7
    )
    writer.parts.append(
        key, RawMessages.from_messages([(0, insert(5, b"4")), (0, commit(end))]), xid=7
    )


def test_parts_have_the_position_of_their_commit_and_a_view_each(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)])))
        parts(writer)
        reader = SpoolReader(spool.path)
        assert reader.position() == 2000
        info = writer.parts.commit("k", position=Lsn(5000), commit_timestamp=77, xid=9)
        writer.append(raw(tx(6000, [insert(5)])))
    assert info.header.counts.relations[5].inserts == 4
    reference = reader.segments(Lsn(2000))[0]
    assert reference.is_reference
    views = list(reader.views(reference))
    assert [view.block.tags.tobytes() for view in views] == [b"BRI", b"II", b"IC"]
    assert [view.block.ordinals.tolist() for view in views] == [[0, 0, 0], [1, 2], [3, 4]]
    assert [5 in view.relations for view in views] == [False, True, True]
    for view in views:
        assert set(view.block.positions.tolist()) == {5000}
        assert set(view.block.xids.tolist()) == {9}
        assert set(view.block.commit_timestamps.tolist()) == {77}
    files = [*(spool.path / "parts").glob("*/*.arrow"), spool.path / reference.name]
    assert reference.size_bytes == sum(path.stat().st_size for path in files)
    assert list(reader.views(reference, Lsn(5000))) == []
    assert [position for position, _ in read(reader)] == [2000, 5000, 5000, 5000, 5000, 6000]


def test_parts_without_a_reference_are_deleted_at_the_next_start(spool):
    with SpoolWriter(spool) as writer:
        parts(writer, "kept", 3000)
        writer.parts.commit("kept", position=Lsn(3000), commit_timestamp=1, xid=1)
        parts(writer, "lost")
        assert len(list((spool.path / "parts").glob("*/*"))) == 6
    with SpoolWriter(spool) as writer:
        assert len(list((spool.path / "parts").glob("*/*"))) == 3
        parts(writer, "broken")
        writer.forget_connection()
        assert len(list((spool.path / "parts").glob("*/*"))) == 3
    assert len(read(SpoolReader(spool.path))) == 4


def test_a_release_deletes_whole_segments_and_their_parts(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)])))
        parts(writer, end=5000)
        writer.parts.commit("k", position=Lsn(5000), commit_timestamp=1, xid=1)
        writer.append(raw(tx(6000, [insert(5)])))
        assert writer.release(Lsn(1999)) == 0
        assert writer.release(Lsn(5999)) == 2
        reader = SpoolReader(spool.path)
        assert reader.start() == 5000
        assert not list((spool.path / "parts").glob("*/*"))
        with pytest.raises(SpoolHole, match="no longer has the changes from"):
            reader.segments(Lsn(2000))
        assert writer.release(Lsn(6000), written_before=0.0) == 0
        assert writer.release(Lsn(9999)) == 1
        assert reader.position() == 6000
    with SpoolWriter(spool) as writer:
        assert writer.position == 6000
        assert writer.append(raw(tx(7000, [insert(5)]))).start == 6000


def test_a_spool_has_one_writer_at_a_time_each_with_a_higher_epoch(spool):
    with SpoolWriter(spool) as first:
        with pytest.raises(SpoolBusy):
            SpoolWriter(Spool.open(spool.path))
        epoch = first.epoch
    with SpoolWriter(spool) as second:
        assert second.epoch == epoch + 1
        ending = threading.Timer(0.1, second.close)
        ending.start()
        with SpoolWriter(Spool.open(spool.path), patience_s=60) as third:
            assert third.epoch == epoch + 2
        ending.join()


def test_a_lock_is_of_the_file_that_others_open(tmp_path, monkeypatch):
    """Who held it deletes the file after it was opened here, and before it is locked."""
    path, lock_file = tmp_path / "lake" / "lock", fcntl.flock

    def forget_first(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", lock_file)
        shutil.rmtree(path.parent)
        lock_file(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", forget_first)
    with (
        FileLock(path, "it is held", "wait"),
        pytest.raises(SpoolBusy),
        FileLock(path, "it is held", "wait"),
    ):
        pytest.fail("two processes have the lock")


def test_no_other_user_can_read_the_files(spool):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)])))
    for path in [spool.path, *spool.path.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_the_identity_is_durable_and_only_changes_within_one_source(spool, tmp_path):
    identity = Spool.open(spool.path).identity
    assert identity == spool.identity
    with pytest.raises(ForeignSpool):
        Spool.create(spool.path, identity)
    with pytest.raises(ForeignSpool):
        spool.replace_identity(replace(identity, system_identifier="2"))
    spool.replace_identity(replace(identity, timeline=2))
    assert Spool.open(spool.path).identity.timeline == 2
    with pytest.raises(SpoolError, match="not a spool"):
        Spool.open(tmp_path / "nothing")
    newer = encode_json({**(decode_json(identity.to_json()) or {}), "format": 5})
    with pytest.raises(ForeignSpool, match="format 5"):
        SpoolIdentity.from_json(newer, "identity.json")


def test_an_intent_cannot_be_read_or_written(tmp_path):
    spool = new_spool(tmp_path / "spool", start=None)
    with pytest.raises(SpoolError, match="its replication slot does not exist yet"):
        SpoolReader(spool.path).position()
    with pytest.raises(SpoolError, match="its replication slot does not exist yet"):
        SpoolWriter(spool)
    spool.register_start(Lsn(50))
    assert SpoolReader(spool.path).position() == 50
    with pytest.raises(SpoolError, match="already"):
        spool.register_start(Lsn(60))


@pytest.fixture
def failing():
    yield failpoints.arm
    failpoints.arm("")


def test_a_full_disk_leaves_nothing_half_written(spool, failing):
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [insert(5)])))
        failing("spool.before_fsync=enospc")
        with pytest.raises(SpoolFull):
            writer.append(raw(tx(3000, [insert(5)])))
        with pytest.raises(SpoolFull):
            writer.advance_frontier(Lsn(9000))
        assert writer.frontier == 2000
        failing("")
        assert not list(spool.path.rglob("*.tmp"))
        writer.append(raw(tx(3000, [insert(5)])))
    assert [position for position, _ in read(SpoolReader(spool.path))] == [2000, 3000]


def test_whether_a_spool_exists_can_be_asked_while_it_is_made(tmp_path):
    folders = [tmp_path / str(number) for number in range(300)]
    asked = list(folders[:1])

    def make_all():
        for folder in folders:
            asked.append(folder)
            new_spool(folder)

    maker = threading.Thread(target=make_all)
    maker.start()
    while maker.is_alive():
        Spool.exists(asked[-1])
    maker.join()
    assert all(map(Spool.exists, folders))
