"""Turns pydantic's errors into sentences: the section, the key, and the problem."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_EXPECTED_TYPES = {
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": 'a list, as in ["a", "b"]',
    "dict_type": "a table, as in { a = 1 }",
    "model_type": "a table, as in { a = 1 }",
    "model_attributes_type": "a table, as in { a = 1 }",
    "path_type": "text in quotes",
    "is_instance_of": "text in quotes",
}


class InvalidSink(ValueError):
    """A sink's section is wrong; ``mistakes`` are sentences that name the sink."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys of a section of the configuration, as written in the file."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelt one; None if none is close."""
    by_lower_name = {known_name.lower(): known_name for known_name in known}
    matches = difflib.get_close_matches(name.lower(), by_lower_name, n=1, cutoff=0.6)
    return by_lower_name[matches[0]] if matches else None


def near_or_known(name: str, known: Collection[str], what: str = "known") -> str:
    """A hint for an unknown name: the nearest known one, or all of them."""
    close_name = nearest(name, known)
    return f"did you mean {close_name}?" if close_name else f"{what}: {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean "x"?``, or empty if no known name is close."""
    close_name = nearest(name, known)
    return f'; did you mean "{close_name}"?' if close_name else ""


def sentences(error: ValidationError, model: type[BaseModel], place: str) -> list[str]:
    """Each error in a section, as ``place: problem``.

    The message has the value only if the key accepts a few fixed words, so that no secret is
    printed.
    """
    found: list[str] = []
    for details in error.errors(include_url=False):
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, InvalidSink):
            joint = ":" if cause.mistakes[0].startswith('"') else ","
            found += (f"{place}{joint} {mistake}" for mistake in cause.mistakes)
        else:
            found.append(_sentence(details, model, place))
    return found


def _sentence(details: Any, model: type[BaseModel], place: str) -> str:
    loc = details["loc"]
    key = str(loc[0]) if loc else ""
    if len(loc) > 1 and (inner := _inner_model(model, key)) is not None:
        return _sentence({**details, "loc": loc[1:]}, inner, f"{place} {key}")
    kind = details["type"]
    context = details.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return f'{place}: unknown key "{key}"{did_you_mean(key, keys_of(model))}'
        case "missing":
            return f'{place}: "{key}" is missing'
        case "literal_error":
            words, value = str(context["expected"]).replace("'", '"'), details["input"]
            given = f'is "{value}"; it ' if isinstance(value, str) and len(value) <= 30 else ""
            return f'{place}: "{key}" {given}can be {words}'
        case "value_error" if key:
            return f'{place}: "{key}" {context["error"]}'
        case "value_error":
            return f"{place}: {context['error']}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            return f'{place}: "{key}" has to be {_bound(kind, context)}'
        case "too_short" | "string_too_short":
            return f'{place}: "{key}" must not be empty'
        case _ if kind in _EXPECTED_TYPES:
            return f'{place}: "{key}" has to be {_EXPECTED_TYPES[kind]}'
        case _:
            message = str(details["msg"])
            return f'{place}: "{key}": {message[:1].lower()}{message[1:]}'


def _inner_model(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of a key that is a table with fixed keys; None: it is another kind of value."""
    field = model.model_fields.get(key)
    kinds = () if field is None else get_args(field.annotation)
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def choices(known: Iterable[str]) -> str:
    """The names that a setting can have, in quotes, as a part of a sentence."""
    return ", ".join(f'"{name}"' for name in sorted(known))


def _bound(kind: str, context: dict[str, Any]) -> str:
    words = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    word, limit = words[kind]
    return f"{word} {context[limit]:,}"
