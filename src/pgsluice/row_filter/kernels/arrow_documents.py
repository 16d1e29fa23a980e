"""jsonb on whole columns: fields of flat objects.

A flat object has no object or array in it, and no escape in its strings. The server prints it in
one form, so that each quotation mark begins or ends a string, and a member's name is followed by a
colon nowhere else. Other documents are parsed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import KERNELS, Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute as Compute
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, make_scalar
from pgsluice.row_filter.values.jsonb import Jsonb, format_jsonb, parse_jsonb

_TEXT: Final = pa.large_string()


def _is_flat(documents: pa.Array) -> pa.Array:
    one_object = pc.and_(
        pc.starts_with(documents, "{"), pc.equal(pc.count_substring(documents, "{"), 1)
    )
    odd = pc.match_substring_regex(documents, r"[\[\\]")
    return pc.and_(one_object, pc.invert(odd)).fill_null(True)


def _key(site: Site) -> str | None:
    key = site.constants[1]
    return key if isinstance(key, str) and _is_simple(key) else None


def _named(key: str) -> str:
    return "".join(f"\\x{ord(character):02x}" for character in f'"{key}": ')


def _field(site: Site) -> Compute | None:
    """``->>`` with a constant name."""
    key = _key(site)
    if key is None:
        return None
    pattern = rf'{_named(key)}(?:"(?P<string>[^"]*)"|(?P<other>[^,}}"]+))'
    parse = KERNELS["jsonb_object_field_text(jsonb,text)"].make(site)

    def run(documents: Datum, _: Datum) -> Datum:
        if isinstance(documents, pa.Scalar):
            raise NoColumn
        found = pc.extract_regex(documents, pattern)
        string, other = pc.struct_field(found, [0]), pc.struct_field(found, [1])
        null = make_scalar(None, _TEXT)
        is_string = pc.not_equal(other, "").fill_null(False)
        plain = pc.if_else(pc.equal(other, "null").fill_null(False), null, other)
        values = pc.if_else(is_string, plain, string)
        return _with_others(values, documents, lambda text: parse(parse_jsonb(text), key))

    return run


def _exists(site: Site) -> Compute | None:
    """``?`` with a constant name."""
    key = _key(site)
    if key is None:
        return None
    test = KERNELS["jsonb_exists(jsonb,text)"].make(site)

    def run(documents: Datum, _: Datum) -> Datum:
        if isinstance(documents, pa.Scalar):
            raise NoColumn
        values = pc.match_substring(documents, f'"{key}": ')
        return _with_others(values, documents, lambda text: test(parse_jsonb(text), key))

    return run


def _contains(site: Site) -> Compute | None:
    """``@>`` with a constant object of texts, booleans and nulls."""
    wanted = site.constants[1]
    content = wanted.content if isinstance(wanted, Jsonb) else None
    if not isinstance(content, dict) or not content:
        return None
    if not all(_is_simple(part) for member in content.items() for part in member):
        return None
    patterns = [
        "".join(f"\\x{ord(one):02x}" for one in format_jsonb({key: value})[1:-1]) + "[,}]"
        for key, value in content.items()
    ]
    test = KERNELS["jsonb_contains(jsonb,jsonb)"].make(site)

    def run(documents: Datum, _: Datum) -> Datum:
        if isinstance(documents, pa.Scalar):
            raise NoColumn
        values = pc.match_substring_regex(documents, patterns[0])
        for pattern in patterns[1:]:
            values = pc.and_(values, pc.match_substring_regex(documents, pattern))
        return _with_others(values, documents, lambda text: test(parse_jsonb(text), wanted))

    return run


def _is_simple(part: object) -> bool:
    """Whether a name or a value has one form only, without escapes."""
    if isinstance(part, str):
        return part.isascii() and part.isprintable() and not set(part) & set('"\\')
    return part is None or isinstance(part, bool)


def _with_others(
    values: pa.Array, documents: pa.Array, compute: Callable[[str], object]
) -> pa.Array:
    """The values, with those of documents that are not flat computed one by one."""
    is_flat = _is_flat(documents)
    if pc.all(is_flat).as_py():
        return values
    others = documents.filter(pc.invert(is_flat)).to_pylist()
    scalars = [make_scalar(compute(text), values.type) for text in others]
    replaced = pa.concat_arrays([pa.repeat(one, 1) for one in scalars])
    return pc.replace_with_mask(values, pc.invert(is_flat), replaced)


MAKERS: Final[dict[str, Callable[[Site], Compute | None]]] = {
    "jsonb_object_field_text(jsonb,text)": _field,
    "jsonb_exists(jsonb,text)": _exists,
    "jsonb_contains(jsonb,jsonb)": _contains,
}
"""For functions of documents, what makes the computation of a call; None: rows only."""
