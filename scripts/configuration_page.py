"""Write docs/configuration.md: every key of the configuration, from the models themselves.

``python scripts/configuration_page.py`` writes the page; tests/docs/test_configuration_page.py
compares it with the models.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from pgsluice.config.in_force import TAKEN_OVER
from pgsluice.config.model import (
    MonitorConfig,
    PublicationsConfig,
    SourceConfig,
    SpoolConfig,
    SubscriptionConfig,
    VerifyConfig,
)
from pgsluice.config.section import Section
from pgsluice.sinks.delta.config import DeltaSinkConfig

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
_HEAD = """\
# Configuration: every key
`pgsluice init` writes a configuration with comments. This page lists every key, with its type,
its default and its effect. `scripts/configuration_page.py` writes the page from the models that
validate the file.

The file is TOML. Relative paths start from the file's folder. An unknown key is an error that
names the nearest known key. A *duration* is a number of seconds or text such as `"10m"`. A *size*
is a number of bytes or text such as `"16 MiB"`.

`pgsluice run` reads the file when it starts. It takes over keys marked *live* while it works: on
SIGHUP, and when `pgsluice copy` asks for it. All other keys need a new start. `pgsluice copy` and
the log name the keys that differ.
"""
_SPARK = """
## `[spark]`
Any Spark setting, as text: `"spark.master" = "local[*]"`. `run` reads them when it starts Spark.
"""
_KINDS = {
    "_size": "size",
    "_duration": "duration",
    "_path": "path",
    "_target_path": "path or URL",
    "_spool_path": "path or URL",
    "_any_sink": "table",
}


def page() -> str:
    """The whole page."""
    sections = [
        ("`[source]`", SourceConfig, False),
        ("`[spool]`", SpoolConfig, False),
        ("`[publications]`", PublicationsConfig, True),
        ("`[[subscription]]`", SubscriptionConfig, True),
        ('`sink = { type = "delta", … }`', DeltaSinkConfig, True),
        ("`verify = { … }`", VerifyConfig, True),
        ("`[monitor]`", MonitorConfig, False),
    ]
    tables = "".join(_section(title, model, is_live=live) for title, model, live in sections)
    return _HEAD + tables + _SPARK


def _section(title: str, model: type[Section], *, is_live: bool) -> str:
    words = descriptions(model)
    first = (model.__doc__ or "").strip().partition("\n")[0].rpartition("``: ")[2]
    lines = [f"\n## {title}", first[:1].upper() + first[1:], ""]
    lines += ["| key | type | default | live | what it does |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        key = field.alias or name
        live = "yes" if is_live and _is_live(model, key) else ""
        what = words[name].replace("|", "\\|")
        lines.append(f"| `{key}` | {_type(field)} | {_default(field)} | {live} | {what} |")
    return "\n".join(lines) + "\n"


def _is_live(model: type[Section], key: str) -> bool:
    if model is SubscriptionConfig:
        return key in TAKEN_OVER
    return model is PublicationsConfig or key not in ("type", "path")


def descriptions(model: type[Section]) -> dict[str, str]:
    """What each key does, from the section ``Attributes`` of the model's docstring."""
    lines = (model.__doc__ or "").partition("Attributes:\n")[2].splitlines()
    text = "\n".join(line[8:] for line in lines)
    found = re.findall(r"^(\w+(?:, \w+)*): (.*(?:\n .*)*)", text, re.MULTILINE)
    words = {
        name: re.sub(r"\s+", " ", what).replace("``", "`")
        for names, what in found
        for name in names.split(", ")
    }
    return {name: what[:1].upper() + what[1:] for name, what in words.items()}


def _type(field: FieldInfo) -> str:
    for each in (field, *_annotated(field.annotation)):
        for metadata in getattr(each, "metadata", None) or getattr(each, "__metadata__", ()):
            kind = _KINDS.get(getattr(getattr(metadata, "func", None), "__name__", ""))
            if kind is not None:
                return kind
    return " or ".join(dict.fromkeys(_names(field.annotation)))


def _annotated(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "__metadata__"):
        yield annotation
    for argument in get_args(annotation):
        yield from _annotated(argument)


def _names(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield from (f'`"{word}"`' for word in get_args(annotation))
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _names(each)
    elif origin in (tuple, dict):
        yield "list of texts" if origin is tuple else "table"
    elif annotation is not type(None):
        base = annotation if isinstance(annotation, type) else get_args(annotation)[0]
        if issubclass(base, Section):
            yield "table"
            return
        yield {bool: "true, false", int: "whole number", float: "number"}.get(base, "text")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ({}, ()):
        return ""
    kind = _type(field)
    if kind == "size":
        return f'`"{value // 2**20} MiB"`'
    if kind == "duration":
        return f"{value:g} s"
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return f"`{list(value)}`".replace("'", '"')
        case str():
            return f'`"{value}"`'
        case _:
            return f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
