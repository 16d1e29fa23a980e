"""Compares a query's options of START_REPLICATION with those that its spool is written with.

A capture that the query starts uses the query's options. If somebody else's capture writes the
spool, or none does, a different option would have no effect: a query with ``messages``, for
example, would wait for messages that never come. So it is refused.
"""

from __future__ import annotations

from typing import Any

from pgsluice.errors import ConfigError
from pgsluice.spark.options import SourceOptions
from pgsluice.spool import SpoolIdentity


def refuse_other_options(options: SourceOptions, identity: SpoolIdentity) -> None:
    """Refuse a query whose options differ from the spool's.

    Raises:
        ConfigError: the spool is written with another value of an option.
    """
    for name, value in options.walsender.items():
        spool_value = identity.options.get(name)
        if spool_value is None or spool_value == _text(value):
            continue
        raise ConfigError(
            f"option {name} is {_text(value)}; the spool {options.spool} is written with "
            f"{name} = {spool_value}",
            hint=f"remove the option, or set {name} in [source] of the configuration whose capture "
            "writes the spool (or in the query that started the capture)",
            option=name,
        )


def _text(value: Any) -> str:
    """A value in the form in which the spool's identity stores it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
