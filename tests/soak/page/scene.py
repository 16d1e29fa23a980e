"""A status as the page gets it: two subscriptions, copies, trouble, odd names, moving figures."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.monitor.test_problems import CONFIG, SLOT
from tests.support.odd_names import ODD_NAMES

from pgsluice.capture.health import CaptureCounts
from pgsluice.config import Config
from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.monitor.lags import TableLag
from pgsluice.monitor.source_status import CaptureStatus, SourceStatus
from pgsluice.monitor.spool_status import CopiesStatus, SpoolStatus, TableCopyStatus
from pgsluice.monitor.status import Status, SubscriptionStatus
from pgsluice.spool import TableRecord, TableState, TargetName

SCRIPT = "<script>document.title='hacked'</script>"
_MIB = 1 << 20
_START = Lsn.parse("5A/3F0C8A10")
_WORDS = ("orders", "customers", "payments", "shipments", "invoices", "sessions", "events")
_PARKED = (
    "sales.ledger: 2 rows have the key of another row\n"
    "  → remove them at the source, then `pgsluice copy CONFIG sales.ledger`"
)
_INSERTS_ONLY = (
    "inserts only: it has no replica identity\n  → ALTER TABLE sales.clicks REPLICA IDENTITY FULL"
)
_FAILING = "the store does not answer: connection to 10.0.4.7:443 timed out\n  → no data is lost"


class Scene:
    """Statuses of a run that works on a shop.

    Args:
        tables: how many tables the larger subscription has.
        odd: whether tables with odd names are among them.
    """

    def __init__(self, tables: int = 40, *, odd: bool = False) -> None:
        self.config: Config = CONFIG
        self._step = 0
        names = [f"{_WORDS[n % 7]}_{n // 7:03}" if n > 6 else _WORDS[n] for n in range(tables)]
        self._names = [*names, *([SCRIPT, *ODD_NAMES] if odd else [])]

    def status(self) -> Status:
        """The status after one more step of two seconds."""
        self._step += 1
        now = time.time() - 120 + 2 * self._step
        moved = sum(3 * _MIB + 500_000 * (n * 7 % 5) for n in range(self._step))
        at = Lsn(_START + moved)
        counts = CaptureCounts(moved, 400 * self._step, moved // 180, {"started": 1})
        return Status(
            SourceStatus("shop", replace(SLOT, retained_bytes=48 * _MIB, safe_wal_bytes=18 << 30),
                         at, read_at=now - 7),
            SpoolStatus(at, at, 212 * _MIB, 9),
            (self._lake(at, moved), self._audit(at)),
            CaptureStatus(True, "streaming", at, reported_at=now, pid=7, is_streaming=True,
                          acknowledged=at, last_commit_at=now - 0.4, counts=counts),
            now,
        )  # fmt: skip

    def _lake(self, at: Lsn, moved: int) -> SubscriptionStatus:
        ready = TableRecord("sales", "", TableState.READY, at, target="lake/sales")
        tables, lags = [], dict[TargetName, TableLag]()
        for number, name in enumerate(self._names):
            rows = 1000 * number + (moved // 4000 if number < 9 else 0)
            tables.append(replace(ready, name=name, rows=rows))
            lags[tables[-1].target_name] = TableLag(0, 0.4 if number < 9 else 0.0)
        parked = replace(ready, name="ledger", state=TableState.PARKED, error=_PARKED, rows=82_144)
        failing = replace(ready, name="stock", error=_FAILING, rows=911)
        copying = replace(ready, name="archive", state=TableState.DATA_COPY)
        inserts = replace(ready, name="clicks", rows=7_104_923, incomplete=(
            _INSERTS_ONLY,
        ))  # fmt: skip
        since = time.time() - 94
        lags[parked.target_name] = TableLag(5 * _MIB, 94.0, since, _PARKED)
        lags[failing.target_name] = TableLag(2 * _MIB, 61.0, since + 33, _FAILING)
        done = min(4_000_000_000, 900_000_000 + moved)
        amount = CopyAmount(
            done // 100_000_000, 40, done // 120, done, 4_000_000_000, 334_000, 40 << 20
        )
        copies = CopiesStatus(
            {copying.target_name: TableCopyStatus(amount, "", 17 * _MIB)}, 3, 4, amount
        )
        return SubscriptionStatus(
            "lake", "current", "s3://bucket/lake/{schema}/{table}", at, 5 * _MIB, 94.0,
            (*tables, parked, failing, copying, inserts), is_enabled=True, is_configured=True,
            copies=copies, lags=lags, is_running=True,
        )  # fmt: skip

    def _audit(self, at: Lsn) -> SubscriptionStatus:
        table = TableRecord("sales", "orders", TableState.READY, at, rows=20_113)
        return SubscriptionStatus(
            "audit", "changelog", "lake/audit/{schema}/{table}", at, 0, 0.4, (table,),
            is_enabled=True, is_configured=True, is_running=True,
        )  # fmt: skip
