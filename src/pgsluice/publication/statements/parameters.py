"""The parameters of WITH and SET, and the errors of their names and values.

Source: src/backend/commands/publicationcmds.c, parse_publication_options;
src/backend/commands/define.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from pgsluice.definitions.publications import Action, GeneratedColumns, Publication
from pgsluice.publication.statements.syntax import Parameter
from pgsluice.sql import SqlRefused

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')
_LIST = re.compile(rf"\s*(?:{_NAME.pattern})\s*(?:,\s*(?:{_NAME.pattern})\s*)*")


def with_parameters(publication: Publication, parameters: Iterable[Parameter]) -> Publication:
    """Set parameters of a publication; the others stay.

    Raises:
        SqlRefused: an unknown parameter or value, or a parameter given twice.
    """
    given: set[str] = set()
    for parameter in parameters:
        if parameter.name in given:
            raise SqlRefused("conflicting or redundant options", parameter.position)
        if (read := _READERS.get(parameter.name)) is None:
            raise SqlRefused(f'unrecognized publication parameter: "{parameter.name}"')
        publication = replace(publication, **{parameter.name: read(parameter)})
        given.add(parameter.name)
    return publication


def _actions(parameter: Parameter) -> tuple[Action, ...]:
    if parameter.value is None:
        raise SqlRefused("publish requires a parameter")
    actions: list[Action] = []
    for name in _split_names(parameter.value):
        match name:
            case "insert" | "update" | "delete" | "truncate":
                actions.append(name)
            case _:
                raise SqlRefused(f'unrecognized value for publication option "publish": "{name}"')
    return tuple(actions)


def _split_names(text: str) -> list[str]:
    """Split names at their commas and fold those without quotes (SplitIdentifierString)."""
    if text.strip() and not _LIST.fullmatch(text):
        raise SqlRefused('invalid list syntax in parameter "publish"')
    return [
        name[2].lower() if name[1] is None else name[1].replace('""', '"')
        for name in _NAME.finditer(text)
    ]


def _boolean(parameter: Parameter) -> bool:
    if parameter.value is None:
        return True
    value = _BOOLEANS.get(parameter.value.lower())
    if value is None:
        raise SqlRefused("publish_via_partition_root requires a Boolean value")
    return value


def _generated(parameter: Parameter) -> GeneratedColumns:
    value = parameter.value or ""
    match value.lower():
        case "none":
            return "none"
        case "stored":
            return "stored"
    raise SqlRefused(
        f'invalid value for publication parameter "publish_generated_columns": "{value}"',
        detail='Valid values are "none" and "stored".',
    )


_READERS: Final[dict[str, Callable[[Parameter], Any]]] = {
    "publish": _actions,
    "publish_via_partition_root": _boolean,
    "publish_generated_columns": _generated,
}
"""What reads the value of each parameter, which :class:`Publication` has under the same name."""
