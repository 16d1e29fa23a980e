"""The text of structs, as ``record_out``, ``range_out`` and ``multirange_out`` print composites,
ranges and multiranges; and of maps, as ``hstore_out`` prints them.

A struct whose fields are those of :data:`RANGE` is a range. A list of such structs is a multirange,
unless the column is an array of ranges. Source: src/backend/utils/adt/rowtypes.c, rangetypes.c,
multirangetypes.c, contrib/hstore/hstore_io.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RANGE = ("lower", "upper", "lower_inc", "upper_inc", "empty")

_TEXT = pa.large_string()
_SPACES = r" \t\n\r\x0b\x0c"
_IN_RECORD = rf'^$|[{_SPACES}"\\(),]'
_IN_RANGE = rf'^$|[{_SPACES}"\\(),\[\]]'


def is_range(kind: pa.DataType) -> bool:
    """Whether an Arrow type is the struct that a target has for a range."""
    return pa.types.is_struct(kind) and tuple(field.name for field in kind) == RANGE


def records(structs: pa.Array, fields: Sequence[pa.Array]) -> pa.Array:
    """Composites: ``(1,"a b",)``.

    Args:
        fields: the text of each field of the structs.
    """
    parts: list[pa.Array | str] = []
    for field in fields:
        parts += [",", _quoted(field, _IN_RECORD)]
    return _where_valid(structs, _joined("(", *parts[1:], ")"))


def ranges(structs: pa.Array, lower: pa.Array, upper: pa.Array) -> pa.Array:
    """Ranges: ``[1,"a b")``, ``empty``.

    Args:
        lower, upper: the text of the bounds.
    """
    begin, end, is_empty = (structs.field(index) for index in (2, 3, 4))
    text = _joined(
        pc.if_else(begin, "[", "(").cast(_TEXT),
        _quoted(lower, _IN_RANGE),
        ",",
        _quoted(upper, _IN_RANGE),
        pc.if_else(end, "]", ")").cast(_TEXT),
    )
    return _where_valid(structs, pc.if_else(is_empty, pa.scalar("empty", _TEXT), text))


def in_braces(lists: pa.Array, elements: pa.Array, delimiter: str) -> pa.Array:
    """The text of arrays and multiranges, ``{[1,2),[5,6)}``, from the texts of all elements."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    texts = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements)
    joined = pc.binary_join(texts, pa.scalar(delimiter, _TEXT))
    return _where_valid(lists, _joined("{", joined, "}"))


def hstores(maps: pa.MapArray) -> pa.Array:
    """hstore: ``"a"=>"1", "b"=>NULL``, in the order of the map."""
    keys, values = (escaped(part.cast(_TEXT)) for part in (maps.keys, maps.items))
    pairs = _joined(keys, "=>", values.fill_null("NULL"))
    offsets = pa.array(maps.offsets.to_numpy().astype(np.int64))
    lists = pa.LargeListArray.from_arrays(offsets, pairs)
    return _where_valid(maps, pc.binary_join(lists, pa.scalar(", ", _TEXT)))


def escaped(texts: pa.Array) -> pa.Array:
    """Texts in quotes, with a backslash before quotes and backslashes."""
    return _joined('"', pc.replace_substring_regex(texts, r'(["\\])', r"\\\1"), '"')


def _quoted(texts: pa.Array, special: str) -> pa.Array:
    """The text of a field: quoted if it is special, nothing for NULL."""
    doubled = pc.replace_substring_regex(texts, r'(["\\])', r"\1\1")
    is_special = pc.match_substring_regex(texts, special)
    return pc.if_else(is_special, _joined('"', doubled, '"'), texts).fill_null("")


def _joined(*parts: pa.Array | str) -> pa.Array:
    columns = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", _TEXT))


def _where_valid(values: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, _TEXT))
