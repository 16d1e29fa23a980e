"""Names of a spool's files, and that forgetting a spool leaves nothing of it behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.transactions import begin, insert, new_spool, raw, relation, transaction

from pgsluice.capture.health import CaptureHealth, write_health
from pgsluice.errors import SpoolError
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Owner,
    RawMessages,
    RecordStore,
    Spool,
    SpoolReader,
    SpoolWriter,
    SubscriptionRecord,
)
from pgsluice.spool.layout import (
    FILES,
    FOLDERS,
    PartName,
    PreparedName,
    SegmentName,
    forget_spool,
    new_object,
    spool_of,
    subscription_folder,
    subscription_names,
)
from pgsluice.spool.storage import shard_now
from pgsluice.subscription.base.requests import pending_requests, request_copy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SegmentName(Lsn(1000), Lsn(2000), 17), "00000000000007D0-00000000000003E8-00000011.arrow"),
        (
            SegmentName(Lsn(1), Lsn(2**63 - 1), 1, is_reference=True),
            "7FFFFFFFFFFFFFFF-0000000000000001-00000001.ref.arrow",
        ),
        (PartName(17, "00000009-0000000A", 3), "00000011-00000009-0000000A-000003.arrow"),
        (PartName(1, "s1", 1_000_000), "00000001-s1-1000000.arrow"),
        (PreparedName(Lsn(4500), 2**32 - 1), "0000000000001194-FFFFFFFF.arrow"),
    ],
)
def test_a_name_is_read_back_as_it_was_written(name, text):
    assert str(name) == text
    assert type(name).parse(text) == name
    folder, _, base = new_object(name, shard_now()).split("/")
    assert (folder, base) == (name.folder, text)
    for other in (f"{text}.tmp", f"copy of {text}", "notes.txt"):
        assert type(name).parse(other) is None


def test_a_number_that_is_no_lsn_is_no_name():
    assert SegmentName.parse(f"{'F' * 16}-{'0' * 16}-00000001.arrow") is None
    assert PreparedName.parse(f"{'F' * 16}-00000001.arrow") is None


def test_an_object_leads_to_its_spool(tmp_path):
    name = new_object(PartName(1, "s1", 1), shard_now())
    assert spool_of(tmp_path / "spool" / name) == tmp_path / "spool"
    with pytest.raises(SpoolError, match="is not in a spool"):
        spool_of(tmp_path / "elsewhere.arrow")


def test_a_writer_deletes_only_files_with_names_of_the_spool(tmp_path):
    spool = new_spool(tmp_path / "spool")
    unnamed = spool.path / new_object(PartName(1, "s1", 1), shard_now())
    foreign = unnamed.with_name("notes.txt")
    of_prepared = spool.path / "prepared" / foreign.parent.name / "notes.txt"
    for path in (unnamed, foreign, of_prepared):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    SpoolWriter(spool).close()
    assert [path.exists() for path in (unnamed, foreign, of_prepared)] == [False, True, True]


def test_what_others_put_into_a_spool_is_not_read(tmp_path):
    """A file manager's notes, an editor's backups, the folder of a file system's repairs."""
    path = full_spool(tmp_path / "spool").path
    before = [info.name for info in SpoolReader(path).all_segments()]
    for folder in [path, *(each for each in path.rglob("*") if each.is_dir())]:
        (folder / "zz notes.txt").write_text("hello")
        (folder / "lost+found").mkdir()
        (folder / "lost+found" / "notes.txt").write_text("hello")
    assert [info.name for info in SpoolReader(path).all_segments()] == before
    with SpoolWriter(Spool.open(path)) as writer:
        writer.append(raw(transaction(6000, [insert(5)])))
    assert len(SpoolReader(path).all_segments()) == len(before) + 1
    assert subscription_names(path) == ["lake"]
    assert len(pending_requests(path / "subscriptions" / "lake")) == 1


def full_spool(path: Path) -> Spool:
    """A spool with at least one file of every kind, also of those that a crash leaves."""
    spool = new_spool(path)
    begun = RawMessages.from_messages([(0, begin(4000)), (0, insert(5))])
    with SpoolWriter(spool) as writer:
        writer.append(raw(transaction(2000, [relation(5), insert(5)])))
        writer.append(raw(transaction(3000, [insert(5)])))
        for key in ("committed", "prepared", "open"):
            writer.parts.append(key, begun, xid=7)
        writer.parts.commit("committed", position=Lsn(4000), commit_timestamp=1, xid=7)
        writer.parts.prepare("prepared", gid="g", xid=8, prepare_lsn=Lsn(4100))
        writer.advance_frontier(Lsn(5000))
        writer.release(Lsn(2000))
    spool.write_released({"lake": {"*": "0/1"}})
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(2))
    RecordStore.create(path, record)
    (subscription_folder(spool.path, "lake") / "checkpoint").mkdir()
    request_copy(subscription_folder(spool.path, "lake"), 5)
    write_health(path, CaptureHealth(1, CapturePhase.STREAMING, 0.0, 0.0))
    temporary = ("capture.json.17.tmp", *(f"{name}.tmp" for name in FILES))
    for name in ("alerts.json", "alerts.lock", "spark.log", "spark.log.1", *temporary):
        (path / name).touch()
    return spool


def test_a_full_spool_has_every_kind_of_file(tmp_path):
    """Whoever adds a kind of file to the layout adds it to the tests, too."""
    path = full_spool(tmp_path / "spool").path
    assert all((path / name).is_file() for name in FILES)
    assert all(any((path / name).rglob("*")) for name in FOLDERS)
    unknown = {
        entry.name for entry in path.iterdir() if not entry.name.startswith((*FILES, *FOLDERS))
    }
    assert not unknown


def test_forgetting_a_spool_leaves_nothing_behind(tmp_path):
    path = full_spool(tmp_path / "spool").path
    assert forget_spool(path)
    assert not path.exists()
    assert not forget_spool(path)


def test_forgetting_a_spool_leaves_what_is_not_its_own(tmp_path):
    path = full_spool(tmp_path / "spool").path
    (path / "notes.txt").touch()
    assert forget_spool(path)
    assert [entry.name for entry in path.iterdir()] == ["notes.txt"]


def test_the_identity_goes_last(tmp_path, monkeypatch):
    """Cut off anywhere, forgetting goes on when it is called again."""
    path = full_spool(tmp_path / "spool").path
    seen = []
    unlink = Path.unlink

    def cut_off(entry: Path, **options: bool) -> None:
        seen.append(entry.name)
        assert Spool.exists(path)
        unlink(entry, **options)

    monkeypatch.setattr(Path, "unlink", cut_off)
    forget_spool(path)
    assert seen[-1] == "identity.json"


def test_a_new_spool_in_the_folder_knows_no_prepared_transaction_of_the_old_one(tmp_path):
    path = full_spool(tmp_path / "spool").path
    forget_spool(path)
    with SpoolWriter(new_spool(path)) as writer:
        assert list(writer.parts.prepared) == []
        assert writer.last_received == writer.position
