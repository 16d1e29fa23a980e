"""json and jsonb: fields, elements, paths, containment.

The operators of json cut a value's text out of the document; those of jsonb print it.
Source: src/backend/utils/adt/jsonfuncs.c, jsonb_op.c, jsonb_util.c (``JsonbDeepContains``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from pgsluice.row_filter.kernels.arithmetic import integer
from pgsluice.row_filter.kernels.kernel import Compute, Site, kernel, register, register_all, sited
from pgsluice.row_filter.kernels.numerics import numeric_to_float8, numeric_to_integer
from pgsluice.row_filter.kernels.texts.letters import encoder
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values.collections import PgArray
from pgsluice.row_filter.values.jsonb import Jsonb, format_jsonb, is_equal, kind_of

_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*[+-]?0*[0-9]{1,10}", re.ASCII)
_INT4: Final = range(-(2**31), 2**31)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
#: It finds where values end, and decodes strings; numbers may have any length.
_DECODER: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _text(content: Any) -> str | None:
    """A value as ->> gives it."""
    if content is None:
        return None
    return content if isinstance(content, str) else format_jsonb(content)


_MISSING: Final = object()


def _field(content: Any, name: str) -> Any:
    return content.get(name, _MISSING) if isinstance(content, dict) else _MISSING


def _element(content: Any, index: int) -> Any:
    # a scalar document is stored as an array with one element
    elements = content if isinstance(content, list) else [content]
    if isinstance(content, dict) or not -len(elements) <= index < len(elements):
        return _MISSING
    return elements[index]


def _follow(content: Any, path: PgArray) -> Any:
    if None in path.elements:
        return _MISSING
    for step in path.elements:
        if isinstance(content, dict):
            content = _field(content, step)
        elif isinstance(content, list) and _is_index(step):
            content = _element(content, _index(step))
        else:
            return _MISSING
        if content is _MISSING:
            return _MISSING
    return content


def _is_index(step: str) -> bool:
    return _INTEGER.fullmatch(step) is not None and _index(step) in _INT4


def _index(step: str) -> int:
    sign = -1 if "-" in step else 1
    return sign * int(step.strip(" \t\n\v\f\r+-").lstrip("0") or "0")


def _reading(
    get: Callable[[Any, Any], Any], show: Callable[[Any], Any]
) -> Callable[[Jsonb, Any], Any]:
    def run(document: Jsonb, key: Any) -> Any:
        value = get(document.content, key)
        return None if value is _MISSING else show(value)

    return run


for _name, _get, _argument in (
    ("jsonb_object_field", _field, "text"),
    ("jsonb_array_element", _element, "int4"),
    ("jsonb_extract_path", _follow, "_text"),
):
    register(f"{_name}(jsonb,{_argument})", _reading(_get, Jsonb))
    register(f"{_name}_text(jsonb,{_argument})", _reading(_get, _text))


# Containment and existence


def _is_container(content: Any) -> bool:
    return isinstance(content, dict | list)


def contains(a: Any, b: Any) -> bool:
    """Whether container ``a`` contains container ``b`` of the same kind."""
    if isinstance(a, dict):
        return isinstance(b, dict) and all(
            key in a and _contains_value(a[key], value) for key, value in b.items()
        )
    if not isinstance(a, list) or not isinstance(b, list):
        return False
    return all(any(_contains_value(element, wanted) for element in a) for wanted in b)


def _contains_value(a: Any, b: Any) -> bool:
    if _is_container(a) and _is_container(b):
        return contains(a, b)
    return not _is_container(a) and not _is_container(b) and is_equal(a, b)


@kernel("jsonb_contains(jsonb,jsonb)")
def _jsonb_contains(a: Jsonb, b: Jsonb) -> bool:
    left, right = a.content, b.content
    if isinstance(left, list) and not _is_container(right):
        right = [right]  # an array contains a scalar that is one of its elements
    if not _is_container(left) and not _is_container(right):
        return is_equal(left, right)
    return contains(left, right)


def _exists(content: Any, key: str) -> bool:
    if isinstance(content, dict | list):
        return any(isinstance(element, str) and element == key for element in content)
    return isinstance(content, str) and content == key


register_all(
    {
        "jsonb_contained(jsonb,jsonb)": lambda a, b: _jsonb_contains(b, a),
        "jsonb_exists(jsonb,text)": lambda document, key: _exists(document.content, key),
        "jsonb_exists_any(jsonb,_text)": lambda document, keys: any(
            _exists(document.content, key) for key in keys.elements if key is not None
        ),
        "jsonb_exists_all(jsonb,_text)": lambda document, keys: all(
            _exists(document.content, key) for key in keys.elements if key is not None
        ),
        "jsonb_typeof(jsonb)": lambda document: kind_of(document.content),
    }
)


@kernel("jsonb_array_length(jsonb)")
def _array_length(document: Jsonb) -> int:
    if isinstance(document.content, list):
        return len(document.content)
    kind = "non-array" if isinstance(document.content, dict) else "scalar"
    raise SqlError("invalid_parameter_value", f"cannot get array length of a {kind}")


def _cast(kind: str, target: str, compute: Callable[[Any], Any]) -> Callable[[Jsonb], Any]:
    def run(document: Jsonb) -> Any:
        actual = kind_of(document.content)
        if actual == "null":
            return None
        if actual != kind:
            shown = {"number": "numeric"}.get(actual, actual)
            raise SqlError("invalid_parameter_value", f"cannot cast jsonb {shown} to type {target}")
        return compute(document.content)

    return run


register("bool(jsonb)", _cast("boolean", "boolean", bool))
register("numeric(jsonb)", _cast("number", "numeric", lambda number: number))
register("float8(jsonb)", _cast("number", "double precision", numeric_to_float8))
for _name, _printed in (("int2", "smallint"), ("int4", "integer"), ("int8", "bigint")):
    register(f"{_name}(jsonb)", _cast("number", _printed, numeric_to_integer(_name)))


# json, by its text


def _skip(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    return match.end() if match else index


def _parts(text: str, end: str) -> Iterator[tuple[str, str]]:
    """The names and the values' texts of an object, or of an array, whose parts have no names.

    Args:
        end: the bracket that ends it.
    """
    name, index = "", _skip(text, _skip(text, 0) + 1)
    while text[index] != end:
        if end == "}":
            name, index = _DECODER.raw_decode(text, index)
            index = _skip(text, _skip(text, index) + 1)
        start = index
        index = _DECODER.raw_decode(text, start)[1]
        yield name, text[start:index]
        index = _skip(text, index)
        if text[index] == ",":
            index = _skip(text, index + 1)


def _first(text: str) -> str:
    return text[_skip(text, 0)]


def _check_escapes(text: str, encode: Callable[[str], bytes]) -> None:
    """json stores escapes as they are written; the operators fail for those that are no text."""
    waiting = ""  # a high surrogate, which has to be followed by a low one
    end = -1
    for escape in _ESCAPE.finditer(text):
        code = int(escape[1], 16) if escape[1] else -1
        is_low = 0xDC00 <= code < 0xE000
        if bool(waiting) != is_low or (waiting and escape.start() != end):
            raise _bad_surrogate()
        if code == 0:
            raise _UNSUPPORTED
        is_high = 0xD800 <= code < 0xDC00
        if code > 127 and not is_high:
            _check_character(waiting + chr(code), encode)
        waiting, end = chr(code) if is_high else "", escape.end()
    if waiting:
        raise _bad_surrogate()


def _check_character(units: str, encode: Callable[[str], bytes]) -> None:
    """A character has to exist in the database's encoding."""
    character = units.encode("utf-16", "surrogatepass").decode("utf-16")
    try:
        encode(character)
    except UnicodeEncodeError:
        raise _UNSUPPORTED from None


_UNSUPPORTED: Final = SqlError("untranslatable_character", "unsupported Unicode escape sequence")


def _bad_surrogate() -> SqlError:
    return SqlError("invalid_text_representation", "invalid input syntax for type json")


def _checked(get: Callable[[str, Any], str | None]) -> Callable[[Site], Compute]:
    """A function that decodes all strings of its document, whatever it looks for."""

    def make(site: Site) -> Compute:
        encode = encoder(site)

        def run(text: str, key: Any) -> str | None:
            if "\\u" in text:
                _check_escapes(text, encode)
            return get(text, key)

        return run

    return make


def _json_field(text: str, name: str) -> str | None:
    if _first(text) != "{":
        return None
    last = None
    for key, value in _parts(text, "}"):
        if key == name:
            last = value  # of equal names the last counts
    return last


def _json_element(text: str, index: int) -> str | None:
    if _first(text) != "[":
        return None
    elements = [part for _, part in _parts(text, "]")]
    return elements[index] if -len(elements) <= index < len(elements) else None


def _json_path(text: str, path: PgArray) -> str | None:
    if None in path.elements:
        return None
    value: str | None = text.strip(" \t\n\r")
    for step in path.elements:
        if value is None:
            return None
        if _first(value) == "[":
            value = _json_element(value, _index(step)) if _is_index(step) else None
        else:
            value = _json_field(value, step)
    return value


def _json_text(text: str | None) -> str | None:
    """A value's text as ->> gives it."""
    if text is None or text.strip(" \t\n\r") == "null":
        return None
    if _first(text) == '"':
        return str(_DECODER.decode(text))
    return text


def _text_of(get: Callable[[str, Any], str | None]) -> Callable[[str, Any], str | None]:
    return lambda text, key: _json_text(get(text, key))


for _name, _get_text, _argument in (
    ("json_object_field", _json_field, "text"),
    ("json_array_element", _json_element, "int4"),
    ("json_extract_path", _json_path, "_text"),
):
    sited(f"{_name}(json,{_argument})")(_checked(_get_text))
    sited(f"{_name}_text(json,{_argument})")(_checked(_text_of(_get_text)))


@kernel("json_typeof(json)")
def _json_typeof(text: str) -> str:
    kinds = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}
    first = _first(text)
    return "null" if first == "n" else kinds.get(first, "number")


@kernel("json_array_length(json)")
def _json_array_length(text: str) -> int:
    first = _first(text)
    if first == "[":
        return integer("int4", sum(1 for _ in _parts(text, "]")))
    kind = "non-array" if first == "{" else "scalar"
    raise SqlError("invalid_parameter_value", f"cannot get array length of a {kind}")
