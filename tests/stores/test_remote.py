"""What only a folder in an object store has: requests that are saved, and forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from tests.stores.conftest import MakeFolder
from tests.support.store_proxy import StoreProxy

from pgsluice.stores.contract import Folder, Span

_FORK = """
import json, os, sys
from pgsluice.stores.places import folder_at
url, options = sys.argv[1], json.loads(sys.argv[2])
folder = folder_at(url, options)
if sys.argv[3] == "after use":
    folder.create("1", b"one")
if (child := os.fork()) == 0:
    try:
        for use in (folder.entries, lambda: folder.write("u-1")):
            use()
        print("used it", flush=True)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
folder.create("2", b"two")
print("the parent goes on")
"""


@pytest.fixture
def behind(s3_folder: MakeFolder, proxy: StoreProxy) -> Folder:
    return s3_folder(aws_endpoint_url=proxy.endpoint)


@pytest.mark.parametrize(
    ("when", "said"),
    [("after use", "this process cannot use the store"), ("before use", "used it")],
)
def test_a_child_that_is_forked_after_use_is_refused(
    s3_folder: MakeFolder, when: str, said: str
) -> None:
    folder = s3_folder()
    done = subprocess.run(
        [sys.executable, "-c", _FORK, folder.uri, json.dumps(folder.storage_options()), when],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stdout.endswith("the parent goes on\n")


def test_what_this_process_has_written_is_not_fetched(behind: Folder, proxy: StoreProxy) -> None:
    with behind.write("u-1.bin") as stream:
        stream.write(b"0123456789")
    behind.settle()
    with behind.open("u-1.bin") as file:
        assert file.read() == b"0123456789"
    assert behind.read_spans("u-1.bin", [Span(2, 3), Span(9, 4)]) == [b"234", b"9"]
    assert [request.method for request in proxy.requests] == ["PUT"]


def test_what_another_has_written_is_fetched_once(
    behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy
) -> None:
    for name in ("u-1.bin", "u-2.bin"):
        s3_folder().create(name, bytes(100))
    for _ in range(3):
        behind.open("u-1.bin").close()
        behind.read_spans("u-2.bin", [Span(0, 10), Span(50, 10)])
    assert [request.method for request in proxy.requests] == ["GET", "GET"]


def test_a_batchs_files_go_up_at_the_same_time(behind: Folder, proxy: StoreProxy) -> None:
    both = threading.Barrier(2)

    def wait_for_both(request: object) -> None:
        both.wait(60)  # broken, if one is sent after the other

    proxy.choose = wait_for_both
    for name in ("part-1.parquet", "deletion_vector_1.bin"):
        with behind.write(name) as stream:
            stream.write(b"content")
    behind.settle()
    assert not both.broken


def test_a_listing_is_one_request(behind: Folder, s3_folder: MakeFolder, proxy: StoreProxy) -> None:
    for number in range(30):
        s3_folder().create(f"log/{number:02}", b"content")
    assert len(behind.entries("log/", "log/19")) == 10
    assert len(proxy.requests) == 1


def test_folders_of_other_accounts_are_others(s3_folder: MakeFolder) -> None:
    assert s3_folder() == s3_folder()
    assert s3_folder() != s3_folder(aws_endpoint_url="http://127.0.0.1:1")
