"""What goes wrong beside a run whose tables lie in an object store, and what it leaves there."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from obstore.store import S3Store
from tests.support.object_stores import ObjectStore, versitygw
from tests.support.pipeline import BUCKET
from tests.support.store_proxy import Fault, StoreProxy

from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.log.reading import read_snapshot
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.lake.keys.index import data_file_of
from pgsluice.stores.places import folder_at
from pgsluice.testing.sink_tests import identity

HANG_S = 8.0
CLIENT = {"timeout": "5s"}
"""The client gives up before a request that hangs is closed."""
_WHOLE_SECONDS_S = 5.0
"""Times in a store are in whole seconds, and by another clock."""
_A_DAY_LATER = {
    "delta.upkeep.MANY_COMMITS": 1,
    "delta.upkeep.MAINTAINED": "another.maintenance",  # was never done
}


class Faults(threading.Thread):
    """Every few seconds the next request, or some of them, has a fault; until ``ended``.

    Args:
        proxy: before the store.
        seed: of the dice.
        pause_s: at most, between two faults.
    """

    def __init__(self, proxy: StoreProxy, seed: int, pause_s: float = 3.0) -> None:
        super().__init__(name="faults", daemon=True)
        proxy.hang_s = HANG_S
        self._proxy = proxy
        self._dice = random.Random(f"{seed} faults")
        self._pause_s = pause_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._dice.uniform(0.3, self._pause_s)):
            fault = self._dice.choice(list(Fault))
            self._proxy.fault_next(fault, times=self._dice.choice([1, 1, 2, 5]), method="")

    def stop(self) -> None:
        """From now on nothing goes wrong."""
        self._ended.set()
        self.join()
        self._proxy.choose = None

    def counted(self) -> str:
        """Which there were, for a page."""
        counts = Counter(fault.value for _, fault in self._proxy.faults)
        return ", ".join(f"{name} {count}x" for name, count in sorted(counts.items()))


@contextmanager
def faults(proxy: StoreProxy, seed: int) -> Iterator[Faults]:
    """Faults during the block."""
    thread = Faults(proxy, seed)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


class RestartedStore:
    """versitygw, which is killed and started again over its folder, on the same port.

    No connection gets that port for its own end meanwhile: it is none of those that the system
    gives out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _fixed_port()
        self._running = ExitStack()
        self.store = self._running.enter_context(versitygw(folder, self._port))
        self.store.make_bucket(BUCKET)

    def restart(self, away_s: float, ended: threading.Event) -> None:
        """SIGKILL, and a new server after some time, or when the event is set.

        It ends with the thread that calls.
        """
        self._running.close()
        ended.wait(away_s)
        self._running.enter_context(versitygw(self._folder, self._port))

    def close(self) -> None:
        """End it."""
        self._running.close()


def _fixed_port() -> int:
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def maintained_a_day_later(
    url: str, store: ObjectStore, tables: list[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Maintain tables as on the next day; the objects that no version names then.

    Args:
        url: of the lake.
        tables: their folders there.
    """
    for name, value in _A_DAY_LATER.items():
        monkeypatch.setattr(f"pgsluice.sinks.{name}", value)
    sink = DeltaSink(f"{url}/{{schema}}/{{table}}", storage_options=store.options)
    unnamed = []
    for table in tables:
        namespace, _, name = table.partition("/")
        target = TargetTable(namespace, name, pa.schema([]), ())
        sink.open(target, identity()).maintain([])
        sink.open(target, identity()).delete_leftovers(time.time() + _WHOLE_SECONDS_S)
        unnamed += unnamed_objects(sink.location(namespace, name), store)
    return unnamed


def unnamed_objects(url: str, store: ObjectStore) -> list[str]:
    """The objects of a table that no version in its log names."""
    folder = folder_at(url, store.options)
    snapshot = read_snapshot(folder)
    assert snapshot is not None
    vectors = (file.vector for file in snapshot.files.values() if file.vector is not None)
    named = {
        *snapshot.files,
        *snapshot.removed,
        *(vector.name(folder) for vector in vectors),
    }
    prefix = urlsplit(url).path.strip("/") + "/"
    config = {key: value for key, value in store.options.items() if key != "allow_http"}
    bucket = S3Store(BUCKET, config=config, client_options={"allow_http": True})
    found = [meta["path"] for page in bucket.list(prefix) for meta in page]
    names = (path.removeprefix(prefix) for path in found)
    ours = [name for name in names if not name.startswith("_delta_log/")]
    return [name for name in ours if data_file_of(name) not in named]
