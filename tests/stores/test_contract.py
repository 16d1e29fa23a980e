"""What every folder can do, on a disk and in each kind of object store."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsluice.stores.contract import Changed, Folder, NameTaken, Span

_WRITERS = 16


def _race(attempt: Callable[[bytes], object], lost: type[Exception]) -> list[bytes]:
    """What those have written who won."""
    start = threading.Barrier(_WRITERS)
    winners: list[bytes] = []
    failures: list[BaseException] = []

    def write(number: int) -> None:
        data = b"%d" % number * 100
        start.wait()
        try:
            attempt(data)
        except lost:
            return
        except BaseException as error:
            failures.append(error)
        else:
            winners.append(data)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    return winners


def test_one_of_sixteen_writers_creates_a_name(folder: Folder) -> None:
    for name in ("log/1", "log/2", "log/3"):
        [winner] = _race(lambda data, name=name: folder.create(name, data), NameTaken)  # type: ignore[misc]
        assert folder.read(name) == winner


def test_one_of_sixteen_writers_replaces_what_all_have_read(folder: Folder) -> None:
    if folder.path is not None:
        pytest.skip("on a disk a file that is replaced has one writer, by its lock")
    tag = folder.create("record", b"first")
    [winner] = _race(lambda data: folder.replace("record", data, tag), Changed)
    assert folder.read("record") == winner


def test_a_created_name_keeps_its_content(folder: Folder) -> None:
    folder.create("log/1", b"ours")
    with pytest.raises(NameTaken, match="log/1"):
        folder.create("log/1", b"theirs")
    assert folder.read("log/1") == b"ours"


def test_a_replacement_needs_the_content_that_it_was_made_from(folder: Folder) -> None:
    first = folder.replace("record", b"first", None)
    with pytest.raises(Changed):
        folder.replace("record", b"another first", None)
    second = folder.replace("record", b"second!", first)
    with pytest.raises(Changed):
        folder.replace("record", b"third", first)
    with pytest.raises(Changed):
        folder.replace("not there", b"third", first)
    assert folder.read("record") == b"second!"
    folder.replace("record", b"third", second)


def test_a_tag_is_the_same_wherever_it_comes_from(folder: Folder) -> None:
    created = folder.create("log/1", b"one")
    [listed] = folder.entries("log/")
    found = folder.stat("log/1")
    assert found is not None
    assert created == listed.tag == found.tag
    assert {created: "it is hashable"}
    assert (found.name, found.size) == ("log/1", 3) == (listed.name, listed.size)


def test_entries_are_a_folders_own_files_in_order(folder: Folder) -> None:
    for name in ("log/10", "log/09", "log/11", "log/a/1", "log/a/2", "log.txt", "logs/1"):
        folder.create(name, b"content")
    assert [file.name for file in folder.entries("log/")] == ["log/09", "log/10", "log/11"]
    assert [file.name for file in folder.entries("log/", "log/09")] == ["log/10", "log/11"]
    assert [file.name for file in folder.entries("log/", "log/095")] == ["log/10", "log/11"]
    assert [file.name for file in folder.entries("log/", "log/11")] == []
    assert [file.name for file in folder.entries()] == ["log.txt"]
    assert folder.entries("nothing/") == []
    assert folder.entries("nothing/", "nothing/1") == []


def test_names_are_kept_as_they_are(folder: Folder) -> None:
    names = ["a b", "a%20b", "ä~2F", "x=1/y+z", "a&b<c>", "it's"]
    for name in names:
        folder.create(f"odd/{name}", name.encode())
    assert [folder.read(f"odd/{name}").decode() for name in names] == names
    there = {file.name for file in (*folder.entries("odd/"), *folder.entries("odd/x=1/"))}
    assert there == {f"odd/{name}" for name in names}


def test_what_is_not_there_is_said(folder: Folder) -> None:
    assert folder.stat("nothing") is None
    with pytest.raises(FileNotFoundError):
        folder.read("nothing")
    with pytest.raises(FileNotFoundError):
        folder.open("nothing")
    with pytest.raises(FileNotFoundError):
        folder.read_spans("nothing", [Span(0, 1)])


def test_what_is_deleted_is_gone_and_others_stay(folder: Folder) -> None:
    for name in "abcd":
        folder.create(name, b"content")
    folder.delete("a", "not there", "c")
    folder.delete("not there")
    folder.delete()
    assert [file.name for file in folder.entries()] == ["b", "d"]


@pytest.mark.parametrize("rows", [10, 3_000_000, 6_000_000])
def test_a_parquet_file_is_written_and_read(folder: Folder, rows: int) -> None:
    # Plain: 24 MB are fetched by parts, and 48 MB are also sent by parts.
    table = pa.table({"id": np.arange(rows), "twice": np.arange(0, 2 * rows, 2, dtype=np.int32)})
    with folder.write("part-1.parquet") as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False)
        size = stream.tell()
    folder.settle()
    found = folder.stat("part-1.parquet")
    assert found is not None
    assert found.size == size
    for known in (None, size):
        with folder.open("part-1.parquet", known) as file:
            assert pq.read_table(file, columns=["twice"]).equals(table.select(["twice"]))
    with folder.open("part-1.parquet") as file:
        assert pq.ParquetFile(file).metadata.num_rows == rows


def test_spans_are_read_in_any_order_and_end_with_the_file(folder: Folder) -> None:
    content = bytes(range(256)) * 20_000  # more than a cache keeps
    with folder.write("u-1.bin") as stream:
        stream.write(content)
    folder.settle(["u-1.bin"])
    spans = [Span(3_000_000, 5), Span(0, 4), Span(2, 4), Span(4, 1 << 21)]
    spans += [Span(len(content) - 2, 10), Span(len(content) + 5, 10)]
    expected = [content[start : start + length] for start, length in spans]
    for _ in range(2):
        assert folder.read_spans("u-1.bin", spans) == expected


@pytest.mark.parametrize("size", [1000, 50_000_000])
def test_what_a_failed_block_wrote_is_not_there(folder: Folder, size: int) -> None:
    def write() -> None:
        with folder.write("u-1.bin") as stream:
            stream.write(b"x" * size)
            raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        write()
    folder.delete("u-1.bin")
    folder.settle()
    assert folder.stat("u-1.bin") is None


def test_what_is_deleted_while_it_is_sent_does_not_come_back(folder: Folder) -> None:
    names = [f"u-{number}.bin" for number in range(20)]
    for name in names:
        with folder.write(name) as stream:
            stream.write(b"x" * 1_000_000)
    folder.delete(*names)
    folder.settle()
    assert folder.entries() == []


def test_one_place_is_equal_and_pickles(folder: Folder) -> None:
    again = pickle.loads(pickle.dumps(folder))
    assert again == folder
    assert hash(again) == hash(folder)
    again.create("1", b"one")
    assert folder.read("1") == b"one"
