"""Tables in an object store beside tables on a disk, in one run on one machine.

The store is versitygw, which is built by Go and keeps its objects as files: its own cost is small
beside ours. Requests are counted, and delayed, by a proxy; CPU is measured without the proxy, and
is this process's alone. Requests that begin within the delay that the proxy adds do not wait for
each other's answers: they are one round trip.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from tests.support.object_stores import ObjectStore, versitygw
from tests.support.store_proxy import StoreProxy, store_proxy

from bench import large, live
from bench.merge import IDENTITY, TABLE, copied_rows, updates
from bench.report import Line, ratio
from bench.stage import Bucket, Stage
from pgsluice.lsn import Lsn
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter

CHANGED = 500
BATCHES = 15
"""Measured, after some that warm up."""
WARM_UP = 3
DELAY_S = 0.03
LARGE_ROWS = 5_000_000
IDLE_S = 10
_BUCKET = "lake"


def measure(stage: Stage, *, all_of_it: bool) -> Iterator[Line]:
    """A batch, without the upkeep after it; a stream; an idle table; a large transaction.

    Args:
        all_of_it: otherwise only a stream and an idle table.
    """
    folder = stage.folder / "versitygw"
    with versitygw(folder) as store, store_proxy(store.endpoint) as proxy:
        store.make_bucket(_BUCKET)
        if all_of_it:
            yield from _batches(stage, store)
        bucket = Bucket(f"s3://{_BUCKET}", store.options, folder / "buckets" / _BUCKET)
        yield from _stream(stage, bucket, bucket._replace(options=store.at(proxy.endpoint)), proxy)
        if all_of_it:
            yield from _large(stage, bucket)


@dataclass(frozen=True)
class Cost:
    """Of a batch: the medians of some, in seconds, and requests; the fewest round trips, since a
    busy machine may begin a request late."""

    cpu_s: float
    took_s: float
    requests: Counter[str]
    trips: int

    def __str__(self) -> str:
        return f"{1000 * self.cpu_s:.1f} ms of CPU in {1000 * self.took_s:.0f} ms"


class _Place:
    """A table of so many rows, on a disk or in a store, and executors that know nothing of it."""

    def __init__(self, stage: Stage, url: str, store: ObjectStore | None) -> None:
        self._stage, self._url, self._store = stage, url, store
        self._random = np.random.default_rng(7)
        self._position = 1
        writer = self._executor({} if store is None else store.options, "copied")()
        staged = writer.stage_load(copied_rows(stage.rows), Lsn(1))
        writer.commit_load([staged], Lsn(1))

    def cost(self, delay_s: float | None = None) -> tuple[Cost, Cost]:
        """What a new executor's first batch costs, and what a later one costs.

        Args:
            delay_s: added to each request by a proxy; None: without a proxy.
        """
        with ExitStack() as stack:
            options, proxy = {}, None
            if self._store is not None:
                proxy = stack.enter_context(store_proxy(self._store.endpoint))
                proxy.delay_s = delay_s or 0.0
                # Each executor has options of its own, so it shares nothing in this process.
                options = {**self._store.options, "user_agent": str(uuid.uuid4())}
                if delay_s is not None:
                    options = self._store.at(proxy.endpoint)
            requests: list[tuple[float, str]] = []
            if proxy is not None:
                note = requests.append
                proxy.choose = lambda one: note((time.monotonic(), one.method))
            executor = self._executor(options, str(uuid.uuid4()))
            costs = [self._batch(executor, requests) for _ in range(WARM_UP + BATCHES)]
        later = costs[WARM_UP:]
        return costs[0], Cost(
            float(np.median([cost.cpu_s for cost in later])),
            float(np.median([cost.took_s for cost in later])),
            later[-1].requests,
            min(cost.trips for cost in later),
        )

    def _executor(self, options: dict[str, str], cache: str) -> Callable[[], TableWriter]:
        sink = DeltaSink(
            self._url + "/{table}",
            merge="on_read",
            cache_dir=str(self._stage.folder / "keys" / cache),
            storage_options=options,
        )
        return lambda: TableWriter(sink, TABLE, IDENTITY)

    def _batch(
        self, executor: Callable[[], TableWriter], requests: list[tuple[float, str]]
    ) -> Cost:
        self._position += 1
        ids = self._random.choice(self._stage.rows, CHANGED, replace=False).tolist()
        net = updates(ids, self._position)
        requests.clear()
        began, used = time.perf_counter(), time.process_time()
        writer = executor()
        writer.apply(net, Lsn(self._position))
        used, took = time.process_time() - used, time.perf_counter() - began
        made, trips, until = [*requests], 0, 0.0
        for at, _ in made:
            if at > until:
                trips, until = trips + 1, at + DELAY_S
        writer.maintain([])
        return Cost(used, took, Counter(method for _, method in made), trips)


def _batches(stage: Stage, store: ObjectStore) -> Iterator[Line]:
    what = f"{CHANGED} random keys into {stage.rows:,} rows"
    cold, disk = _Place(stage, str(stage.folder / "merged"), None).cost()
    place = _Place(stage, f"s3://{_BUCKET}/merged", store)
    cold_stored, stored = place.cost()
    cold_slow, slow = place.cost(DELAY_S)
    yield Line(
        ratio(stored.cpu_s, disk.cpu_s),
        "≤ 1.5 x",
        f"CPU of {what}, in a store",
        f"{stored}",
        f"disk: {disk}",
    )
    yield Line(
        str(slow.trips),
        "≤ 3",
        f"round trips, one after the other, of {what}",
        f"{_requests(slow)}",
        f"{1000 * slow.took_s:.0f} ms with {1000 * DELAY_S:.0f} ms added to each request",
    )
    yield Line(
        ratio(cold_stored.took_s, cold.took_s),
        "",
        f"an executor's first batch, {what}",
        f"{cold_stored}; {_requests(cold_slow)}, {cold_slow.trips} round trips",
        f"disk: {cold}; {1000 * cold_slow.took_s:.0f} ms with {1000 * DELAY_S:.0f} ms added to each"
        " request",
    )


def _requests(cost: Cost) -> str:
    made = ", ".join(f"{count} {method}" for method, count in sorted(cost.requests.items()))
    return f"{cost.requests.total()} requests ({made})"


def _stream(stage: Stage, direct: Bucket, delayed: Bucket, proxy: StoreProxy) -> Iterator[Line]:
    load = f"{live.TRANSACTIONS_PER_S} transactions/s, one table of {stage.rows:,} rows"
    spools = [bucket._replace(has_spool=True) for bucket in (direct, delayed)]
    seconds, requests = [], []
    for bucket in (None, direct, delayed, *spools):
        proxy.delay_s = DELAY_S
        with live.running(stage, tables=1, bucket=bucket) as (shop, config, _):
            seconds.append(live.load(stage, shop, config, tables=1, rows=stage.rows))
            time.sleep(IDLE_S / 2)  # the last batch's echo
            before = len(proxy.requests)
            time.sleep(IDLE_S)
            requests.append(len(proxy.requests) - before)
    disk, store, slow, *with_spool = seconds
    for share, reach in ((50, "≤ 3 x"), (99, "")):
        there, here = np.percentile(store, share), np.percentile(disk, share)
        yield Line(
            ratio(float(there), float(here)),
            reach,
            f"commit to visible in a store, p{share}",
            f"{there:.2f} s; {load}",
            f"disk: {here:.2f} s",
        )
    for share, reach in ((50, "< 1.5 s"), (99, "")):
        yield Line(
            f"{np.percentile(slow, share):.2f} s",
            reach,
            f"the same with {1000 * DELAY_S:.0f} ms added to each request, p{share}",
            f"{len(slow):,} transactions",
        )
    yield Line(str(requests[2]), "0", "requests of an idle table", f"in {IDLE_S} s")
    for delay_s, found in zip((0.0, DELAY_S), with_spool, strict=True):
        for share, reach in ((50, "< 2.5 s"), (99, "")):
            yield Line(
                f"{np.percentile(found, share):.2f} s",
                reach,
                f"spool in the store, too, {1000 * delay_s:.0f} ms added to each request, p{share}",
                f"{len(found):,} transactions",
            )
    yield Line(str(requests[4]), "", "requests of an idle table and its spool", f"in {IDLE_S} s")


def _large(stage: Stage, bucket: Bucket) -> Iterator[Line]:
    peaks: dict[str, list[tuple[int, float]]] = {}
    for where in (None, bucket):
        with live.running(stage, tables=1, rows=LARGE_ROWS, bucket=where) as (shop, config, run):
            for what in ("updates", "inserts"):
                most, took_s = large.applied(stage, shop, config, run, what, LARGE_ROWS)
                peaks.setdefault(what, []).append((most.get("worker", 0), took_s))
    for what, ((disk, disk_s), (store, store_s)) in peaks.items():
        yield Line(
            ratio(store, disk),
            "1 x",
            f"a worker's memory in a store, one transaction of {LARGE_ROWS:,} {what}",
            f"{store / 1e6:.0f} MB, {store_s:.0f} s from its commit on",
            f"disk: {disk / 1e6:.0f} MB, {disk_s:.0f} s",
        )
