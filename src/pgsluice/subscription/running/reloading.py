"""Settings that an active run takes over: on SIGHUP, and when ``pgsluice copy`` asks for it.

All subscriptions take them over, or none does. Changed settings that are read only at a start are
logged by name, with the time of the start.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from pgsluice.config import Config, load_config
from pgsluice.config.in_force import Difference, difference, digests, taken_over
from pgsluice.errors import ConfigError
from pgsluice.spool.notes import RunSettings, write_run_settings
from pgsluice.subscription.running.driver import SubscriptionDriver

logger = logging.getLogger(__name__)


class Reloading:
    """The settings of a run that are in force; thread-safe.

    Args:
        reread: returns a configuration whose settings are to be taken over, if there is one.
        began_at: when the run read ``config``, in seconds since 1970; None: now.

    Attributes:
        config: the configuration, with the settings that were taken over since.
    """

    def __init__(
        self,
        config: Config,
        drivers: Sequence[SubscriptionDriver],
        reread: Callable[[], Config | None] = lambda: None,
        began_at: float | None = None,
    ) -> None:
        self.config = config
        self._drivers = drivers
        self._reread = reread
        self._lock = threading.Lock()
        self._began_at = time.time() if began_at is None else began_at
        self._digests = digests(config)
        self._leave(self._digests)

    def reload_if_asked(self) -> None:
        """Take over settings if the user has requested it (SIGHUP)."""
        try:
            config = self._reread()
        except ConfigError as error:
            logger.warning("the settings stay as they were: %s", error)
            return
        if config is not None:
            self.reload(config)

    def reload(self, config: Config | None = None) -> None:
        """Take over the settings of a configuration; None: of the run's file as it is now.

        If it has an error, log it and keep the settings.
        """
        with self._lock:
            try:
                if config is None:
                    if self.config.path is None:
                        return
                    config = load_config(self.config.path)
                takes = [driver.reread_publications(config) for driver in self._drivers]
            except ConfigError as error:
                logger.warning("the settings stay as they were: %s", error)
                return
            self.config = taken_over(self.config, config)
            for driver, take in zip(self._drivers, takes, strict=True):
                take()
                driver.take_over(self.config.subscription(driver.subscription.name))
            after = digests(config)
            found = difference(self._digests, after)
            self._log(found)
            kept = {name: self._digests.get(name, "") for name in found.left}
            self._digests = {**after, **kept}
            self._leave(self._digests)
        for driver in self._drivers:
            driver.is_look_due.set()

    def _log(self, found: Difference) -> None:
        name = "the configuration" if self.config.path is None else self.config.path.name
        if found.taken:
            logger.warning("read %s again; in force from now on: %s", name, ", ".join(found.taken))
        if found.left:
            logger.warning("%s", words_of_left(found, name, self._began_at))
        if not found.taken and not found.left:
            logger.warning("read %s again: no setting has changed", name)

    def _leave(self, settings: dict[str, str]) -> None:
        left = RunSettings(os.getpid(), str(self.config.path), self._began_at, settings)
        for driver in self._drivers:
            write_run_settings(self.config.spool.folder, driver.subscription.name, left)


def words_of_left(found: Difference, name: str, read_at: float) -> str:
    """A sentence that some settings need a restart of the run."""
    return (
        f"restart the run for {', '.join(found.left)}: it read {name} at {time_of_day(read_at)}, "
        "and these settings are read at a start only"
    )


def time_of_day(at: float) -> str:
    """A time for the user: only the time if it is today, else with the date."""
    today = time.strftime("%Y-%m-%d")
    text = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    return text.removeprefix(f"{today} ")
