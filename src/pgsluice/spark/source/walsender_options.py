"""Compares a query's options of START_REPLICATION with those of its spool.

A capture that the query starts uses the query's options. If another capture writes the spool, or
none does, a different option would have no effect: for example, a query with ``messages`` would
wait for messages that never arrive. So it is refused. A spool belongs to one slot, regardless of
its writer.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pgsluice.errors import ConfigError
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spool import SpoolIdentity


def refuse_other_options(options: SourceOptions, identity: SpoolIdentity) -> None:
    """Refuse a query whose options differ from the spool's.

    Raises:
        ConfigError: the spool is written with another value of an option.
    """
    refuse_other_slot(options, identity)
    for name, value in options.walsender.items():
        spool_value = identity.options.get(name)
        if spool_value is not None and spool_value != _text(value):
            _refuse(options, name, _text(value), name, spool_value)
    asked, spool_names = options.publications, named_by_users(identity)
    if asked is not None and spool_names and {*spool_names} != {*asked}:
        names = ", ".join(sorted(spool_names))
        _refuse(options, "publications", ", ".join(asked), "publications", names)


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


def _refuse(options: SourceOptions, name: str, value: str, key: str, spool_value: str) -> NoReturn:
    raise ConfigError(
        f"the option {name} is {value}, but the process that writes the spool {options.spool} "
        f"uses {key} = {spool_value}",
        hint=f"remove the option {name}; or set {key} in [source] of the configuration (or in the "
        "query) that started this process",
        option=name,
    )


def _text(value: Any) -> str:
    """A value in the form of the spool's identity."""
    return str(value).lower() if isinstance(value, bool) else str(value)
