"""What the design has and this version does not: refused by name, never ignored.

A setting that would be taken and do nothing is worse than one that is refused. Whoever builds
one of these deletes its line here, and nothing else has to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from pgsluice.config.model import (
    DeltaSinkConfig,
    PostgresSinkConfig,
    SubscriptionConfig,
)

_NUMERIC = re.compile(r"\A(?:string|double|decimal\(\d+, ?\d+\))\Z")

Rule = tuple[str, Callable[[Any], bool], str]
"""A key as the file has it, whether its value is one that we cannot do, and what to do."""


def _always(_: Any) -> bool:
    return True


def _is_not(*known: object) -> Callable[[Any], bool]:
    return lambda value: value not in known


_ABSENT: dict[type[BaseModel], tuple[Rule, ...]] = {
    SubscriptionConfig: (
        ("mode", _is_not("current"), 'only mode "current" is there yet'),
        ("copy_rate", _always, "limiting the copy's rate is not there yet"),
        (
            "types",
            lambda types: any(not _NUMERIC.match(one) for one in types.values()),
            'only "string", "double" and "decimal(p,s)", for numeric columns, are there yet',
        ),
        ("rename", bool, "renaming is not there yet"),
        ("json", _is_not("string"), 'only "string" is there yet'),
        (
            "on_unrepresentable",
            _is_not("fail"),
            'only "fail" is there yet: a value that its column cannot hold parks its table',
        ),
        ("deleted_column", _always, "a column for deleted rows is not there yet"),
    ),
    DeltaSinkConfig: (
        ("engine", _is_not("auto", "native"), 'only "native" (and "auto") is there yet'),
    ),
    PostgresSinkConfig: (("type", _always, 'only sinks of type "delta" are there yet'),),
}

SINK_TYPES: dict[str, str] = {"iceberg": 'only sinks of type "delta" are there yet'}
"""Sinks that have no model yet."""


def refusals(model: BaseModel) -> Iterator[str]:
    """A sentence for each key that is set to what this version cannot do."""
    keys = {name: field.alias or name for name, field in type(model).model_fields.items()}
    names = {key: name for name, key in keys.items()}
    for key, is_absent, what in _ABSENT.get(type(model), ()):
        name = names[key]
        if name not in model.model_fields_set:
            continue
        value = getattr(model, name)
        if value is not None and is_absent(value):
            shown = f' = "{value}"' if isinstance(value, str) and len(value) < 40 else ""
            yield f'"{key}"{shown}: {what}'
