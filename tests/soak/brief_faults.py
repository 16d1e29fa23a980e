"""Faults that are over before an alert could fire: they raise none."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil
import psycopg
from tests.support.pgbench import processes_of
from tests.support.pipeline import Pipeline
from tests.support.store_proxy import Fault, StoreProxy

EVERY_S = 10.0
_OURS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'pgsluice %'"""
_CLIENTS = 40
_REQUESTS = 3


class BriefFaults:
    """One of them every ten seconds.

    Args:
        one: the run.
        proxy: before the store of its tables.
        port: where the run serves its metrics.
    """

    def __init__(self, one: Pipeline, proxy: StoreProxy, port: int, dice: random.Random) -> None:
        self._one, self._proxy, self._port, self._dice = one, proxy, port, dice
        self._begun_at = time.monotonic()
        self._clients: list[socket.socket] = []
        self._paused: list[psutil.Process] = []
        self._kinds: dict[str, Callable[[], None]] = {
            "sessions cut": self._cut_sessions,
            "requests refused": self._refuse_requests,
            "capture stops": self._stop_capture,
            "silent clients": self._connect_silently,
        }
        self.met: Counter[str] = Counter()

    def advance(self, *, without: str = "") -> None:
        """Begin the next one if ten seconds have passed, and end the one before; called again and
        again.

        Args:
            without: a kind that does not fit now.
        """
        self._continue_capture(after_s=1.0)
        if time.monotonic() - self._begun_at < EVERY_S:
            return
        self._begun_at = time.monotonic()
        name = self._dice.choice(sorted(self._kinds.keys() - {without}))
        self._kinds[name]()
        self.met[name] += 1

    def end(self) -> None:
        """Leave nothing of them."""
        self._continue_capture(after_s=0.0)
        self._proxy.choose = None
        self._disconnect()

    def _cut_sessions(self) -> None:
        with suppress(psycopg.OperationalError):  # the server is away
            self._one.database.execute(_OURS)

    def _refuse_requests(self) -> None:
        fault = self._dice.choice((Fault.REFUSED_BEFORE, Fault.DROP_BEFORE))
        self._proxy.fault_next(fault, method="", times=_REQUESTS)

    def _stop_capture(self) -> None:
        for process in processes_of(self._one, "capture"):
            with suppress(psutil.Error):  # it has just ended
                process.send_signal(signal.SIGSTOP)
                self._paused.append(process)

    def _continue_capture(self, after_s: float) -> None:
        if self._paused and time.monotonic() - self._begun_at >= after_s:
            for process in self._paused:
                with suppress(psutil.Error):  # it was killed meanwhile
                    process.send_signal(signal.SIGCONT)
            self._paused.clear()

    def _connect_silently(self) -> None:
        self._disconnect()
        for _ in range(_CLIENTS):
            with suppress(OSError):  # the run is away
                self._clients.append(socket.create_connection(("127.0.0.1", self._port), 1.0))

    def _disconnect(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
