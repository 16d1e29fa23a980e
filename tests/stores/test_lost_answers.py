"""A write whose answer is lost never becomes a wrong verdict."""

from __future__ import annotations

import threading

import pytest
from tests.stores.conftest import MakeFolder
from tests.support.store_proxy import Fault, Request, StoreProxy

from pgsluice.stores.contract import Changed, Folder, NameTaken, StoreError

_ALL = [*Fault]


@pytest.fixture
def behind(s3_folder: MakeFolder, proxy: StoreProxy) -> Folder:
    """A folder of S3 behind the proxy, which gives up an answer soon."""
    proxy.hang_s = 5
    return s3_folder(aws_endpoint_url=proxy.endpoint, timeout="3s", max_retries="2")


@pytest.mark.parametrize("fault", _ALL)
@pytest.mark.parametrize("times", [1, 3])
def test_a_created_file_is_ours(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault, times: int
) -> None:
    proxy.fault_next(fault, times=times)
    tag = behind.create("log/1", b"ours")
    assert proxy.faults
    found = s3_folder().stat("log/1")
    assert found is not None
    assert found.tag == tag


@pytest.mark.parametrize("fault", _ALL)
def test_anothers_file_is_not_ours(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault
) -> None:
    s3_folder().create("log/1", b"theirs")
    proxy.fault_next(fault)
    with pytest.raises(NameTaken):
        behind.create("log/1", b"ours")
    assert behind.read("log/1") == b"theirs"


@pytest.mark.parametrize("fault", _ALL)
def test_a_replaced_file_is_ours(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault
) -> None:
    tag = s3_folder().create("record", b"first")
    proxy.fault_next(fault)
    new = behind.replace("record", b"second", tag)
    assert s3_folder().read("record") == b"second"
    with pytest.raises(Changed):
        behind.replace("record", b"third", tag)
    behind.replace("record", b"third", new)


@pytest.mark.parametrize("fault", _ALL)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_lost_answer_is_read_again(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault, method: str
) -> None:
    s3_folder().create("log/1", b"one")
    proxy.fault_next(fault, method)
    assert [file.name for file in behind.entries("log/")] == ["log/1"]
    assert behind.read("log/1") == b"one"
    assert behind.stat("log/1") is not None
    assert proxy.faults


@pytest.mark.parametrize("fault", _ALL)
@pytest.mark.parametrize("size", [1000, 40_000_000])
def test_a_data_file_is_sent_again(
    s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault, size: int
) -> None:
    proxy.hang_s = 5
    behind = s3_folder(aws_endpoint_url=proxy.endpoint, timeout="5s", max_retries="2")
    proxy.fault_next(fault)
    content = b"x" * size
    with behind.write("u-1.bin") as stream:
        stream.write(content)
    behind.settle()
    assert s3_folder().read("u-1.bin") == content


def test_sixteen_writers_behind_a_store_that_loses_answers(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy
) -> None:
    lock, count = threading.Lock(), 0

    def every_other(request: Request) -> Fault | None:
        nonlocal count
        with lock:
            count += request.method == "PUT"
            kinds = (Fault.ERROR, None, Fault.DROP, None)
            return kinds[count % 4] if request.method == "PUT" else None

    proxy.choose = every_other
    winners: dict[str, list[bytes]] = {f"log/{name}": [] for name in range(10)}

    def write(number: int) -> None:
        for name, wins in winners.items():
            try:
                behind.create(name, b"%d" % number)
            except NameTaken:
                continue
            wins.append(b"%d" % number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: [s3_folder().read(name)] for name in winners} == winners


def test_a_file_that_cannot_be_sent_is_an_error_of_settle_only_once(
    s3_folder: MakeFolder, proxy: StoreProxy
) -> None:
    behind = s3_folder(aws_endpoint_url=proxy.endpoint, max_retries="0")
    proxy.fault_next(Fault.REFUSED_BEFORE, times=2)
    with behind.write("u-1.bin") as stream:
        stream.write(b"one")
    with pytest.raises(StoreError, match="takes no more requests for now"):
        behind.settle()
    behind.settle()
    with behind.write("u-2.bin") as stream:
        stream.write(b"two")
    behind.delete("u-2.bin")
    behind.settle()


def test_a_name_that_was_not_read_back_may_have_been_created(
    s3_folder: MakeFolder, proxy: StoreProxy
) -> None:
    behind = s3_folder(aws_endpoint_url=proxy.endpoint, max_retries="0")

    def nothing_comes_back(request: Request) -> Fault:
        return Fault.DROP

    proxy.choose = nothing_comes_back
    with pytest.raises(StoreError, match="cannot be reached"):
        behind.create("log/1", b"ours")
    assert s3_folder().read("log/1") == b"ours"
    proxy.choose = None
    behind.create("log/1", b"ours")


@pytest.mark.parametrize("fault", _ALL)
def test_many_files_are_deleted(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy, fault: Fault
) -> None:
    names = [f"u-{number}" for number in range(3)]
    for name in names:
        s3_folder().create(name, b"one")
    proxy.fault_next(fault, method="POST")
    behind.delete(*names)
    assert proxy.faults
    assert not s3_folder().entries()
