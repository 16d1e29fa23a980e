"""Damaged and exchanged files of a spool: one error that names the file, never other data."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spool.small_spool import (
    SUBSCRIPTION,
    make_small_spool,
    read_chain,
    read_prepared,
    read_state,
)
from tests.support.transactions import BEGINNING, insert, raw
from tests.support.transactions import transaction as tx

from pgsluice.errors import SpoolError, SpoolHole
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    PartHeader,
    PreparedHeader,
    ReferenceHeader,
    SegmentHeader,
    Spool,
    SpoolReader,
    SpoolWriter,
    find_record,
)
from pgsluice.spool.formats import checksum
from pgsluice.spool.segments.segment import Objects

OTHER_SPOOL = "99999999-2222-3333-4444-555555555555"
FORMAT_3 = Path(__file__).parent / "format_3"
Read = Callable[[Path], Any]


def read_object(kind: Any) -> Read:
    """Reads the header and the messages of one file."""

    def read(path: Path) -> Any:
        spool = Spool.open(path.parents[2])
        header, messages = Objects(spool).read(str(path.relative_to(spool.path)), kind)
        bounds = zip(messages.starts.tolist(), messages.ends.tolist(), strict=True)
        return header, messages.lsns.tolist(), [messages.data[a:b].tobytes() for a, b in bounds]

    return read


def state_of(path: Path) -> Any:
    return read_state(path.parent)


def record_of(path: Path) -> Any:
    return find_record(path.parents[2], SUBSCRIPTION)


def remembered(path: Path) -> Any:
    with SpoolWriter(Spool.open(path.parent)) as writer:
        return writer.remembered()


def next_epoch(path: Path) -> int:
    return Spool.open(path.parent).raise_epoch()


FILES: dict[str, tuple[str, Read]] = {
    "segment": ("segments/*/*0BB8-*07D0-*.arrow", read_object(SegmentHeader)),
    "reference": ("segments/*/*0FA0-*0BB8-*.ref.arrow", read_object(ReferenceHeader)),
    "part": ("parts/*/*-p1-000001.arrow", read_object(PartHeader)),
    "prepared": ("prepared/*/*1770-*.arrow", read_object(PreparedHeader)),
    "identity": ("identity.json", state_of),
    "start": ("start.json", state_of),
    "frontier": ("frontier.json", state_of),
    "released": ("released.json", state_of),
    "commits": ("commits.json", remembered),
    "record": (f"subscriptions/{SUBSCRIPTION}/record.json", record_of),
    "epoch": ("epoch.json", next_epoch),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "spool"
    make_small_spool(path)
    return path


@pytest.fixture
def spool(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "spool"))


@pytest.fixture
def nothing_is_checked(monkeypatch):
    """Files are written faster than the clock of their times ticks: check each again."""

    class Nothing(dict):
        def __setitem__(self, key, value):
            pass

    monkeypatch.setattr("pgsluice.spool.segments.segment.CHECKED", Nothing())


def the_file(spool: Path, pattern: str) -> Path:
    (path,) = spool.glob(pattern)
    return path


def is_refused(read: Read, path: Path, expected: Any) -> bool:
    """Is the file refused? Otherwise everything must be read as before."""
    error = None
    try:
        result = read(path)
    except SpoolError as refusal:
        error = refusal
    if error is None:
        assert result == expected
        return False
    assert path.name in error.what
    assert error.hint
    return True


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.usefixtures("nothing_is_checked")
def test_each_flipped_byte_is_noticed_or_not_read(spool, kind):
    pattern, read = FILES[kind]
    path = the_file(spool, pattern)
    good = path.read_bytes()
    expected = read(path)
    refused = 0
    step = 5 if kind in ("reference", "part", "prepared") else 1  # the format is a segment's
    for index in range(0, len(good), step):
        data = bytearray(good)
        data[index] ^= 1 << index % 8 if index % 2 else 0xFF
        path.write_bytes(data)
        refused += is_refused(read, path, expected)
    # Of an Arrow file, readers leave out the copy of the header, and what fills up to 8 bytes.
    assert refused >= len(good) // step * (0.25 if path.suffix == ".arrow" else 1)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.usefixtures("nothing_is_checked")
def test_a_truncated_file_is_refused(spool, kind):
    pattern, read = FILES[kind]
    path = the_file(spool, pattern)
    good = path.read_bytes()
    expected = read(path)
    if kind == "record":  # a truncated last line is a save that a crash interrupted
        good = good[: good.index(b"\n") + 1]
    for size in [*range(0, len(good) - 1, 37), len(good) - 2, len(good) - 1]:
        path.write_bytes(good[:size])
        assert is_refused(read, path, expected), size


def exchange(first: Path, second: Path) -> None:
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.mark.parametrize(
    ("first", "second", "read"),
    [
        ("segments/*/*07D0-*03E8-*.arrow", "segments/*/*0BB8-*07D0-*.arrow", read_chain),
        ("segments/*/*0FA0-*0BB8-*", "segments/*/*1388-*0FA0-*", read_chain),
        ("segments/*/*0BB8-*07D0-*", "segments/*/*1388-*0FA0-*", read_chain),
        ("parts/*/*-p1-000001.arrow", "parts/*/*-p1-000002.arrow", read_chain),
        ("parts/*/*-p1-000001.arrow", "parts/*/*-p2-000003.arrow", read_chain),
        ("prepared/*/*1770-*.arrow", "prepared/*/*1B58-*.arrow", read_prepared),
        ("identity.json", "start.json", read_state),
        ("start.json", "frontier.json", read_state),
        ("frontier.json", "epoch.json", read_state),
        ("frontier.json", "released.json", read_state),
        (
            f"subscriptions/{SUBSCRIPTION}/record.json",
            "subscriptions/other/record.json",
            read_state,
        ),
    ],
)
def test_exchanged_files_are_refused(spool, first, second, read):
    paths = the_file(spool, first), the_file(spool, second)
    exchange(*paths)
    with pytest.raises(SpoolError) as caught:
        read(spool)
    assert any(path.name in caught.value.what for path in paths)
    assert caught.value.hint


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_spool_is_refused(spool, tmp_path, kind):
    other = tmp_path / "other"
    make_small_spool(other, OTHER_SPOOL)
    if kind == "identity":  # all other files are then those of another spool
        shutil.copy(other / "identity.json", spool)
        for pattern, read in [FILES[name] for name in ("segment", "record", "frontier")]:
            with pytest.raises(SpoolError, match=OTHER_SPOOL):
                read(the_file(spool, pattern))
        return
    pattern, read = FILES[kind]
    path = the_file(spool, pattern)
    path.write_bytes(the_file(other, pattern).read_bytes())
    with pytest.raises(SpoolError, match=OTHER_SPOOL) as caught:
        read(path)
    assert path.name in caught.value.what


@pytest.mark.parametrize("kind", ["start", "frontier", "released", "epoch"])
def test_an_older_version_of_a_state_file_hides_no_changes(spool, kind):
    """Positions are found by the chain itself: a number in each file would say no more."""
    path = the_file(spool, FILES[kind][0])
    older = path.read_bytes()
    with SpoolWriter(Spool.open(spool)) as writer:
        writer.append(raw(tx(9000, [insert(5, b"late")])))
        writer.advance_frontier(Lsn(9500))
    opened = Spool.open(spool)
    opened.write_released({SUBSCRIPTION: {"*": "0/7D0"}})
    first, *others = SpoolReader(spool).segments(BEGINNING)
    start = opened.chain_start()
    assert start is not None
    opened.write_start(replace(start, floor=first.end))
    (spool / first.name).unlink()
    assert path.read_bytes() != older
    path.write_bytes(older)

    reader = SpoolReader(spool)
    assert [info.name for info in reader.segments(first.end)] == [info.name for info in others]
    assert reader.frontier() >= Lsn(9000)
    with pytest.raises(SpoolHole):
        reader.segments(BEGINNING)
    with SpoolWriter(Spool.open(spool)) as writer:
        writer.append(raw(tx(9900, [insert(5, b"later")])))
    assert SpoolReader(spool).segments(first.end)[-1].end == Lsn(9900)


def test_a_segment_under_the_name_of_another_epoch_is_refused(spool):
    path = the_file(spool, FILES["segment"][0])
    path.rename(path.with_name(path.name.replace("-00000001.", "-00000002.")))
    with pytest.raises(SpoolError, match=r"another file of this spool, .*-00000001\.arrow"):
        read_chain(spool)


def test_a_file_is_checked_once_by_each_process(spool, monkeypatch):
    computed = []
    # The copy of another test may have had the inodes of these files, whose times are the same.
    monkeypatch.setattr("pgsluice.spool.segments.segment.CHECKED", {})
    monkeypatch.setattr(
        "pgsluice.spool.segments.segment.checksum",
        lambda block: computed.append(1) or checksum(block),
    )
    first = read_chain(spool)
    files = 2 + 4  # segments and parts
    assert len(computed) == 3 * files
    assert read_chain(spool) == first
    assert len(computed) == 3 * files
    path = the_file(spool, FILES["segment"][0])
    shutil.copy(path, spool / "copy")  # a file that replaces it is checked
    (spool / "copy").replace(path)
    assert read_chain(spool) == first
    assert len(computed) == 3 * (files + 1)


def test_headers_are_read_without_the_messages(spool, monkeypatch):
    monkeypatch.setattr("pgsluice.spool.segments.segment.checksum", None)
    for info in SpoolReader(spool).all_segments():
        assert info.header.end == info.end


def test_the_newline_of_a_record_is_checked(spool):
    path = the_file(spool, FILES["record"][0])
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(SpoolError, match="damaged"):
        record_of(path)


def test_a_spool_of_format_3_is_read_and_written(tmp_path):
    path = Path(shutil.copytree(FORMAT_3, tmp_path / "spool"))
    new = tmp_path / "new"
    make_small_spool(new)
    assert messages_of(read_chain(path)) == messages_of(read_chain(new))
    assert read_state(path) == read_state(new)
    with SpoolWriter(Spool.open(path)) as writer:
        writer.append(raw(tx(9000, [insert(5, b"new")])))
        writer.advance_frontier(Lsn(9500))
    assert messages_of(read_chain(path))[:-1] == messages_of(read_chain(new))
    assert Spool.open(path).frontier_file() == 9500
    exchange(the_file(path, "segments/*/*07D0-*03E8-*"), the_file(path, "segments/*/*0BB8-*07D0-*"))
    with pytest.raises(SpoolError, match="another file of this spool"):
        read_chain(path)


def messages_of(chain: Any) -> Any:
    return [(start, end, views) for start, end, _, views in chain]


@pytest.mark.parametrize("kind", ["identity", "start", "record"])
def test_a_state_file_that_is_missing_is_named(spool, kind):
    (spool / "subscriptions" / SUBSCRIPTION / "checkpoint").mkdir()
    name, read = FILES[kind]
    path = the_file(spool, name)
    path.unlink()
    with pytest.raises(SpoolError, match=f"{re.escape(str(path))} is missing") as refused:
        SpoolReader.is_there(spool) and read(path)
    assert "restore the file" in str(refused.value)
