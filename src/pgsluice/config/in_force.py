"""Decides which settings of a changed file an active run takes over, and which need a restart.

A run reads the file at its start, on SIGHUP, and when ``pgsluice copy`` requests it. It takes over
the settings in :data:`TAKEN_OVER`. It writes a digest of each setting to a file, so that other
commands can report settings that the run does not use yet; a digest reveals no value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgsluice.config.model import Config, SubscriptionConfig

TAKEN_OVER = frozenset(
    {
        "types",
        "key",
        "numeric",
        "json",
        "foreign_writes",
        "apply_interval_s",
        "copy_data",
        "copy_workers",
        "copy_cores",
        "cut_interval_s",
        "cut_retention_s",
        "publications",
        "sink",
        "verify",
    }
)
"""Settings of a subscription that a run takes over, as well as the statements of [publications]."""
_STATEMENTS = "[publications]"
_TARGET = "sink target"
_NOTHING = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Settings that differ between a file and a run, which can take them over or reads them at its
    next start."""

    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def digests(config: Config) -> dict[str, str]:
    """A digest of each setting, by its name, such as ``[subscription] "lake" types``."""
    sections: dict[str, Mapping[str, Any]] = {
        "[source]": config.source.model_dump(mode="json", by_alias=True),
        "[spool]": config.spool.model_dump(mode="json", by_alias=True),
        "[spark]": config.spark,
        # Without defaults: a run of an earlier version has no digests of this section.
        "[monitor]": config.monitor.model_dump(mode="json", exclude_defaults=True),
    }
    for subscription in config.subscriptions:
        settings = subscription.model_dump(mode="json", by_alias=True)
        settings[_TARGET] = [subscription.sink.type, subscription.sink.target]
        sections[f'[subscription] "{subscription.name}"'] = settings
    names = {
        f"{section} {key}": _digest(value)
        for section, settings in sections.items()
        for key, value in settings.items()
    }
    return {**names, _STATEMENTS: _digest(_statements(config))}


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> Difference:
    """The difference between two files, by the digests of their settings."""
    changed = {
        name
        for name in before.keys() | after.keys()
        if before.get(name, _NOTHING) != after.get(name, _NOTHING)
    }
    known = {name for name in changed if name.endswith('" name')}  # those that came or went
    for place in (name.removesuffix(" name") for name in known):
        changed = {name for name in changed if not name.startswith(place)} | {place}
    moved = {name.removesuffix(_TARGET) + "sink" for name in changed if name.endswith(_TARGET)}
    named = sorted(name for name in changed if not name.endswith(_TARGET))
    taken = tuple(
        name for name in named if name not in moved and _is_taken_over(name, before, after)
    )
    return Difference(taken, tuple(name for name in named if name not in taken))


def taken_over(before: Config, after: Config) -> Config:
    """The configuration with the settings of another one that a run takes over."""
    others = {subscription.name: subscription for subscription in after.subscriptions}
    update: dict[str, Any] = {
        "subscriptions": tuple(
            _with_settings(each, others[each.name]) if each.name in others else each
            for each in before.subscriptions
        )
    }
    if before.publications is not None and after.publications is not None:
        update["publications"] = after.publications
    return before.model_copy(update=update)


def _with_settings(before: SubscriptionConfig, after: SubscriptionConfig) -> SubscriptionConfig:
    taken = set(TAKEN_OVER)
    if before.publications is None or after.publications is None:
        taken.discard("publications")
    if (before.sink.type, before.sink.target) != (after.sink.type, after.sink.target):
        taken.discard("sink")
    fields = SubscriptionConfig.model_fields.items()
    names = [name for name, field in fields if (field.alias or name) in taken]
    return before.model_copy(update={name: getattr(after, name) for name in names})


def _is_taken_over(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    *place, key = name.split(" ")
    if name == _STATEMENTS or key == "publications":  # what was not there needs a new start
        return place != ["[source]"] and bool(before.get(name) and after.get(name))
    return len(place) == 2 and key in TAKEN_OVER


def _statements(config: Config) -> str | None:
    """The statements of pgsluice's own publications; None if there is no such section."""
    if config.publications is None:
        return None
    if config.publications.file is None:
        return config.publications.sql
    try:
        return config.publications.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return str(config.publications.file)


def _digest(value: Any) -> str:
    if value is None:
        return _NOTHING
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
