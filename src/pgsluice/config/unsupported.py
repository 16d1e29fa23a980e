"""Settings that are planned but not supported yet: refused by name, never ignored.

A refused setting is better than one without effect. To implement a setting, delete its line here;
nothing else has to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from pgsluice.config.model import SubscriptionConfig

_TYPE = re.compile(r"\A(?:string|double|decimal\(\d+, ?\d+\)|struct|map|variant)\Z")

Rule = tuple[str, Callable[[Any], bool], str]
"""A key as in the file, a function that tells whether a value is unsupported, and a sentence about
it."""


UNSUPPORTED: dict[type[BaseModel], tuple[Rule, ...]] = {
    SubscriptionConfig: (
        (
            "types",
            lambda types: any(not _TYPE.match(name) for name in types.values()),
            'only "string", "struct", "map", "variant", "double", "decimal(p,s)" are supported yet',
        ),
    ),
}


def unsupported_settings(model: BaseModel) -> Iterator[str]:
    """A sentence for each key whose value this version does not support."""
    keys = {name: field.alias or name for name, field in type(model).model_fields.items()}
    names = {key: name for name, key in keys.items()}
    for key, is_unsupported, what in UNSUPPORTED.get(type(model), ()):
        name = names[key]
        if name not in model.model_fields_set:
            continue
        value = getattr(model, name)
        if value is not None and is_unsupported(value):
            shown = f' = "{value}"' if isinstance(value, str) and len(value) < 40 else ""
            yield f'"{key}"{shown}: {what}'
