"""Capture for a stream that has nobody else's: started by the query, ended with it.

With the option ``dsn``, the process that plans the query sees to it that someone writes to
the spool. A capture that runs already, anybody's, is left alone; if it ends, this one takes
over. The spool of a configuration is never written to from here: only ``pgsluice run`` knows
all the subscriptions that it has to be kept for. Options of START_REPLICATION go to a capture
of our own; a stranger's has to have them in force.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from pgsluice.capture import CaptureProcess, read_health
from pgsluice.config import Config
from pgsluice.errors import SlotInUse, SpoolBusy, SpoolError
from pgsluice.events import CapturePhase
from pgsluice.spark.walsender_options import refuse_other_options
from pgsluice.spool import Owner, Spool

if TYPE_CHECKING:
    from pgsluice.spark.options import SourceOptions

_LOOK_S = 0.2
_TRY_AGAIN_S = 5.0
_NOBODY_S = 60.0
_READY_POLL_S = 0.05


class CaptureKeeper:
    """Sees to it that a capture runs; of the planning process alone.

    Args:
        options: with a ``dsn``.
        once: only up to where the server is now; then it ends by itself.
    """

    def __init__(self, options: SourceOptions, *, once: bool = False) -> None:
        assert options.dsn is not None
        self._path = options.spool
        self._options = options
        self._config = Config.model_validate(
            {
                "source": {
                    "dsn": options.dsn,
                    "slot": options.slot,
                    "publications": options.publication_names,
                    **options.walsender,
                },
                "spool": {"path": str(options.spool)},
            }
        )
        self._once = once
        self._process: CaptureProcess | None = None
        self._next_look = 0.0
        self._seen_at = time.monotonic()

    def look_after(self) -> None:
        """Start a capture if nobody's runs, look after ours if it is ours; cheap.

        Raises:
            PgsluiceError: what our capture ended by, where trying again would not help.
            ConfigError: a capture of somebody else's runs, with other options.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if self._process is None:
            if self._is_anothers(now):
                return
            if self._is_configured():
                return
            self._process = CaptureProcess(self._config, once=self._once)  # check() starts it
        try:
            if not self._process.check():
                self.close()
                self._next_look = math.inf  # it did what it was for
            self._seen_at = now
        except (SpoolBusy, SlotInUse):
            # Somebody was quicker; when that one ends, it is our turn.
            self.close()
            self._next_look = now + _TRY_AGAIN_S

    def wait_for_spool(self) -> None:
        """Wait until the spool has a beginning: until the slot is made."""
        while not Spool.exists(self._path) or Spool.open(self._path).chain_start() is None:
            self.look_after()
            time.sleep(_READY_POLL_S)

    def require(self) -> None:
        """Look after it where something waits for what it does.

        Raises:
            SpoolError: nobody has written to the spool for a while, and we may not.
        """
        self.look_after()
        if time.monotonic() - self._seen_at > _NOBODY_S:
            raise SpoolError(
                f"no capture writes to the spool {self._path}",
                hint="start `pgsluice run` or `pgsluice capture` with its configuration",
                path=str(self._path),
            )

    def close(self) -> None:
        """End ours, cleanly."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _is_anothers(self, now: float) -> bool:
        health = read_health(self._path)
        if health is None or health.phase is CapturePhase.STOPPED or not health.is_alive():
            return False
        self._seen_at = now
        if health.phase in (CapturePhase.STREAMING, CapturePhase.WAITING):
            # Before, the spool still names what the capture before this one asked for.
            refuse_other_options(self._options, Spool.open(self._path).identity)
        return True

    def _is_configured(self) -> bool:
        if not Spool.exists(self._path):
            return False
        records = Spool.open(self._path).subscriptions()
        return any(record.owner is Owner.CONFIG for record in records)
