"""Settings that an active run takes over: all of its subscriptions do, or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.subscription.running.test_driver import config_of, driver_of
from tests.support.spools import SpoolMaker

from pgsluice.config import Config
from pgsluice.errors import ConfigError
from pgsluice.subscription.running.driver import SubscriptionDriver
from pgsluice.subscription.running.reloading import Reloading


def test_publications_are_taken_over_by_all_subscriptions_or_by_none(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, taken = config_of(maker), list[SubscriptionDriver]()
    drivers = [driver_of(maker), driver_of(maker)]
    reloading = Reloading(config, drivers, lambda: config)

    def rereading(driver: SubscriptionDriver) -> Callable[[Config], Callable[[], None]]:
        return lambda _: lambda: taken.append(driver)

    def gone(_: Config) -> Callable[[], None]:
        raise ConfigError("the file cannot be read")

    for driver in drivers:
        monkeypatch.setattr(driver, "reread_publications", rereading(driver))
    with monkeypatch.context() as patch:
        # The file is removed before the second subscription has read it.
        patch.setattr(drivers[1], "reread_publications", gone)
        reloading.reload_if_asked()
    assert not taken
    assert not any(driver.is_look_due.is_set() for driver in drivers)
    reloading.reload_if_asked()
    assert taken == drivers
    assert all(driver.is_look_due.is_set() for driver in drivers)
