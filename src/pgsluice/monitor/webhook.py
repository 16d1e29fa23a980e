"""Sends problems to ``[monitor] webhook``: those of ``status --check``, when they begin and end.

A problem is *raised* when it has lasted for ``webhook_after_s``, and *resolved* when it is gone.
Each message is sent until it is accepted, in their order, so it may arrive twice. What is raised
and not sent yet is kept in the spool's folder, so that a restart neither repeats nor forgets it. Of
several processes with one spool, as ``run`` and ``capture``, the one with the lock sends.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from pgsluice.config import Config
from pgsluice.config.monitor import why_no_webhook
from pgsluice.config.values.secrets import read_secret, why_no_secret
from pgsluice.errors import ConfigError, SpoolBusy, SpoolError
from pgsluice.hints import with_config
from pgsluice.monitor.metrics.http_server import EVERY_S
from pgsluice.monitor.problems import Problem, ProblemKind, find_problems
from pgsluice.monitor.status import Status
from pgsluice.shown import one_line
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool import Spool
from pgsluice.spool.layout import ALERTS
from pgsluice.spool.lock import FileLock, alerts_lock
from pgsluice.system.threads import Backoff

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
_MOST_WAITING = 1000
_WITH_NEW_TABLES = frozenset({ProblemKind.PARKED, ProblemKind.FAILING})
"""Raised again with each other table that is named."""
_END_S = 1.0

Alert = dict[str, Any]
"""A message, as it is sent."""


class Alerts:
    """Which problems have begun, were raised when they had lasted ``after_s`` seconds, or ended."""

    def __init__(self, source: str, after_s: float) -> None:
        self._source = source
        self._after_s = after_s
        self._since: dict[str, float] = {}
        self.raised: dict[str, Alert] = {}

    def update(self, problems: Iterable[Problem], now: float) -> list[Alert]:
        """What is to be sent after a reading of the status, at a time in seconds since 1970."""
        current = {f"{each.kind.value}:{each.subscription or ''}": each for each in problems}
        self._since = {name: self._since.get(name, now) for name in current}
        messages = []
        for name, problem in current.items():
            known = self.raised.get(name)
            if known is None and now - self._since[name] < self._after_s:
                continue
            has_changed = known is not None and known["what"] != _text(problem)
            if known is None or (has_changed and problem.kind in _WITH_NEW_TABLES):
                since = self._since[name] if known is None else known["since"]
                self.raised[name] = self._message(name, problem, since, now)
                messages.append(self.raised[name])
        ended = [name for name in self.raised if name not in current]
        messages += [{**self.raised.pop(name), "event": "resolved", "at": now} for name in ended]
        return messages

    def _message(self, name: str, problem: Problem, since: float, now: float) -> Alert:
        return {
            "event": "raised",
            "id": name,
            "kind": problem.kind.value,
            "subscription": problem.subscription,
            "what": _text(problem),
            "prevents_ready": problem.prevents_ready,
            "slot": self._source,
            "since": since,
            "at": now,
        }


def _text(problem: Problem) -> str:
    """A problem in one line, whatever its names contain."""
    return one_line(with_config(problem.what))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST would become a GET, at an address that nobody configured."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Reads the status in a thread and sends what changed; a context manager.

    Args:
        status: the status now.
        every_s: the time between two readings.

    Raises:
        ConfigError: the webhook's secret cannot be read, or is no URL.
    """

    def __init__(
        self, config: Config, status: Callable[[], Status], *, every_s: float = EVERY_S
    ) -> None:
        self._config = config
        self._status = status
        self._every_s = every_s
        self._url = webhook_url(config.monitor.webhook or "")
        self._host = urlsplit(self._url).hostname
        self._open = urllib.request.build_opener(_NoRedirects).open
        self._alerts = Alerts(config.source.slot, config.monitor.webhook_after_s)
        self._waiting: list[Alert] = []
        self._backoff = Backoff(_PAUSES_S)
        self._next_at = 0.0
        self._is_failing = False
        self._lock: FileLock | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pgsluice webhook", daemon=True)

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._round()
                except Exception as error:
                    logger.warning("alerts: %s: %s", type(error).__name__, one_line(str(error)))
                self._stop.wait(self._every_s)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _round(self) -> None:
        if self._lock is None and not self._take_over():
            return
        status = self._status()
        messages = self._alerts.update(find_problems(status, self._config), status.read_at)
        self._waiting += messages
        del self._waiting[:-_MOST_WAITING]
        if messages:
            self._save()
        while self._waiting and not self._stop.is_set() and time.monotonic() >= self._next_at:
            if self._send(self._waiting[0]):
                del self._waiting[0]
                self._save()

    def _take_over(self) -> bool:
        """Take the lock and read what the process before this one left; false: not yet."""
        if not Spool.exists(self._config.spool.place):
            return False
        lock = alerts_lock(self._config.spool.folder)
        try:
            lock.acquire()
        except (SpoolBusy, SpoolError):
            return False
        self._lock = lock
        try:
            kept = json.loads(self._file.read_text())
            raised, waiting = dict(kept["raised"]), list(kept["waiting"])
        except (OSError, ValueError, TypeError, KeyError):
            return True  # there is none, or it was damaged: what is wrong is raised anew
        self._alerts.raised, self._waiting = raised, waiting
        return True

    @property
    def _file(self) -> Path:
        return Path(self._config.spool.folder) / ALERTS

    def _save(self) -> None:
        kept = {"raised": self._alerts.raised, "waiting": self._waiting}
        replace_json_if_possible(self._file, kept)

    def _send(self, message: Alert) -> bool:
        request = urllib.request.Request(  # noqa: S310 (the configuration allows https)
            self._url,
            json.dumps(message).encode(),
            {"Content-Type": "application/json", "User-Agent": "pgsluice"},
        )
        try:
            with self._open(request, timeout=_TIMEOUT_S):
                pass
        except HTTPError as error:
            return self._failed(f"it answers with status {error.code}")
        except (OSError, HTTPException) as error:
            return self._failed(str(getattr(error, "reason", None) or error))
        self._backoff.succeeded()
        if self._is_failing:
            self._is_failing = False
            logger.warning("the webhook at %s accepts alerts again", self._host)
        return True

    def _failed(self, why: str) -> bool:
        self._next_at = time.monotonic() + self._backoff.failed()
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "the webhook at %s does not accept alerts: %s\n  → correct webhook in [monitor], "
                "or the service there; pgsluice sends the alerts again until it accepts them",
                self._host,
                one_line(why),
            )
        return False


def webhook_url(setting: str) -> str:
    """The URL of ``[monitor] webhook``.

    Raises:
        ConfigError: its secret cannot be read, or is no URL.
    """
    if why_no_secret(setting) is not None:
        return setting
    url = read_secret("webhook", setting).decode(errors="replace").strip()
    if why := why_no_webhook(url):
        raise ConfigError(f'the secret of "webhook" {why}')
    return url
