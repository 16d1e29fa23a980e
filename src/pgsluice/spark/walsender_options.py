"""The walsender's options that a query names, against those that its spool is written with.

A capture that the query starts takes the query's options. Where somebody else's capture
writes the spool, or nobody's does, an option can only be true already: one that is not would
be taken and do nothing, messages that never come for instance. So it is refused.
"""

from __future__ import annotations

from typing import Any

from pgsluice.errors import ConfigError
from pgsluice.spark.options import SourceOptions
from pgsluice.spool import SpoolIdentity


def refuse_other_options(options: SourceOptions, identity: SpoolIdentity) -> None:
    """Compare what was given by name with what is in force.

    Args:
        options: the query's.
        identity: the spool's.

    Raises:
        ConfigError: an option has another value in the spool.
    """
    for name, asked in options.walsender.items():
        in_force = identity.options.get(name)
        if in_force is None or in_force == _text(asked):
            continue
        raise ConfigError(
            f"option {name} is {_text(asked)}; the spool {options.spool} is written with "
            f"{name} = {in_force}",
            hint=f"set {name} in [source] of the configuration whose capture writes the spool "
            "(or in the query that brought the capture), or leave the option out",
            option=name,
        )


def _text(value: Any) -> str:
    """As the spool's identity notes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
