"""Subscriptions: each applies the changes in the spool to one target; and the run around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from pgsluice.config import Config
    from pgsluice.events import MetricsEvent

__all__ = ["Subscription"]


class Subscription:
    """One subscription of a configuration, to run from Python.

    ``Subscription("pgsluice.toml").run(once=True)`` does the same as ``pgsluice run --once`` for
    this subscription. If the process has a Spark session, the run uses it and leaves it running.

    Args:
        config: a configuration, or the path of its file.
        name: the subscription's name; optional if the configuration has only one.

    Raises:
        ConfigError: the configuration is wrong, or has no such subscription.
    """

    def __init__(self, config: Config | Path | str, name: str | None = None) -> None:
        # Workers import this package and need no configuration, whose models take longer to load
        # than all else of ours.
        from pgsluice.config import Config, load_config

        self.config = config if isinstance(config, Config) else load_config(config)
        names = [subscription.name for subscription in self.config.subscriptions]
        if name is None:
            if len(names) != 1:
                raise ConfigError(
                    "Subscription(config) needs a name, since the configuration does not have "
                    f"exactly one subscription: it has {', '.join(names) or 'none'}",
                    hint="give the name: Subscription(config, name)",
                )
            name = names[0]
        self.name = self.config.subscription(name).name

    def run(
        self,
        *,
        once: bool = False,
        report: Callable[[MetricsEvent], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Replicate until ``stop`` is set; with ``once``, to the source's position now.

        Raises:
            PgsluiceError: see :func:`pgsluice.subscription.running.run.run`.
        """
        # Spark is imported by who runs, not by who names a subscription.
        from pgsluice.subscription.running.run import run

        run(self.config, once=once, names=[self.name], report=report, stop=stop)
