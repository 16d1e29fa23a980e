"""Compares a query's options of START_REPLICATION with those of its spool.

A capture that the query starts uses the query's options. If another capture writes the spool, or
none does, a different option would have no effect: for example, a query with ``messages`` would
wait for messages that never arrive. So it is refused. A spool belongs to one slot, regardless of
its writer.
"""

from __future__ import annotations

from pgsluice.errors import ConfigError
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spool import SpoolIdentity


def refuse_other_options(options: SourceOptions, identity: SpoolIdentity) -> None:
    """Refuse a query whose options differ from the spool's.

    Raises:
        ConfigError: the spool is written with another value of an option.
    """
    refuse_other_slot(options, identity)
    given = {name: str(value).lower() for name, value in options.walsender.items()}
    others = {
        name: (value, identity.options[name])
        for name, value in given.items()
        if identity.options.get(name, value) != value
    }
    asked, spool_names = options.publications, named_by_users(identity)
    if asked is not None and spool_names and {*spool_names} != {*asked}:
        others["publications"] = ", ".join(asked), ", ".join(sorted(spool_names))
    for name, (value, spool_value) in others.items():
        raise ConfigError(
            f"the option {name} is {value}, but the process that writes the spool {options.spool} "
            f"uses {name} = {spool_value}",
            hint=f"remove the option {name}; or set {name} in [source] of the configuration (or in "
            "the query) that started this process",
            option=name,
        )


def refuse_other_slot(options: SourceOptions, identity: SpoolIdentity) -> None:
    """Refuse a query with another slot than the spool's.

    Raises:
        ConfigError: the query has another slot.
    """
    if options.slot not in (None, identity.slot):
        raise ConfigError(
            f"the option slot is {options.slot}, but the spool {options.spool} belongs to slot "
            f"{identity.slot}",
            hint="remove the option slot, or set the option spool to another folder: each slot has "
            "its own spool",
            option="slot",
        )


def named_by_users(identity: SpoolIdentity) -> tuple[str, ...]:
    """The spool's publications, without the second one of each managed pair."""
    from pgsluice.catalog.publications.managed import INSERT_SUFFIX

    seconds = {name + INSERT_SUFFIX for name in identity.publications}
    return tuple(name for name in identity.publications if name not in seconds)
