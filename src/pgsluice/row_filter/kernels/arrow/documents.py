"""Computes jsonb functions on whole columns: members of objects, at any depth of nesting.

The server prints a document in one form, so a member can be found in its text: a string that is
followed by a colon is a member's name, and nothing else is followed by one. The places of
quotation marks, braces and brackets say what is inside a string, and how deep a place is. Documents
with an escape in a string are parsed one by one.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import KERNELS, Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute as Compute
from pgsluice.row_filter.kernels.scalars import Datum, Mask, NoColumn, boolean_array, make_scalar
from pgsluice.row_filter.values.jsonb import Jsonb, format_jsonb, parse_jsonb
from pgsluice.types.buffers import content_of

_Places = npt.NDArray[np.int64]
_TEXT: Final = pa.large_string()
_QUOTE, _COMMA, _CLOSING_BRACE = b'",}'
_FIRST_OF_NULL: Final = ord("n")
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_IS_STRUCTURE: Final = np.zeros(256, np.bool_)
_IS_STRUCTURE[list(b'"{}[],')] = True


@dataclass(frozen=True, slots=True)
class _Members:
    """The member of one name in each document of a column.

    Attributes:
        data: the text of all documents.
        is_there: whether a document is an object that has the member.
        starts, ends: where its value is in ``data``; the same for a document that lacks it.
    """

    data: npt.NDArray[np.uint8]
    is_there: Mask
    starts: _Places
    ends: _Places

    @classmethod
    def find(cls, documents: pa.Array, name: str) -> Self:
        """Find a member.

        Args:
            documents: large strings, without NULL and without escapes.
            name: one that the server prints without escapes.
        """
        bounds, data = content_of(documents)
        places = np.flatnonzero(_IS_STRUCTURE[data])
        signs = data[places]
        # From a string's first quotation mark up to its last. Each document has all pairs of
        # marks and brackets, so nothing is carried from one to the next.
        is_inside = np.logical_xor.accumulate(signs == _QUOTE) if len(signs) else signs == _QUOTE
        depths = np.cumsum(np.where(is_inside, 0, _STEPS[signs]), dtype=np.int32)
        wanted = f'"{name}": '.encode()
        names = places[(signs == _QUOTE) & is_inside & (depths == 1)]
        names = names[names + len(wanted) <= len(data)]
        for index, byte in enumerate(wanted):
            names = names[data[names + index] == byte]
        is_end = (signs == _COMMA) & (depths == 1) | (signs == _CLOSING_BRACE) & (depths == 0)
        value_ends = places[is_end & ~is_inside]
        rows = np.searchsorted(bounds, names, side="right") - 1
        is_there = np.zeros(len(documents), np.bool_)
        starts = np.zeros(len(documents), np.int64)
        ends = np.zeros(len(documents), np.int64)
        is_there[rows] = True
        starts[rows] = names + len(wanted)
        ends[rows] = value_ends[np.searchsorted(value_ends, starts[rows])]
        return cls(data, is_there, starts, ends)

    def documents(self) -> pa.Array:
        """The values as jsonb; NULL where there is none."""
        return self._cut(self.starts, self.ends, self.is_there)

    def texts(self) -> pa.Array:
        """The values as text: strings without quotation marks; NULL also for JSON's null."""
        first = self.data[np.minimum(self.starts, len(self.data) - 1)]
        is_string = self.is_there & (first == _QUOTE)
        is_there = self.is_there & (first != _FIRST_OF_NULL)
        return self._cut(self.starts + is_string, self.ends - is_string, is_there)

    def _cut(self, starts: _Places, ends: _Places, is_there: Mask) -> pa.Array:
        sizes = np.where(is_there, ends - starts, 0)
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        indices = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes)
        validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        buffers = [validity, pa.py_buffer(bounds), pa.py_buffer(self.data[indices])]
        return pa.Array.from_buffers(_TEXT, len(sizes), buffers)


def _key(site: Site) -> str | None:
    key = site.constants[1]
    return key if isinstance(key, str) and _is_simple(key) else None


def _is_simple(part: object) -> bool:
    """Whether a name or a value has one form only, without escapes."""
    if isinstance(part, str):
        return part.isascii() and part.isprintable() and not set(part) & set('"\\')
    return part is None or isinstance(part, bool)


def _of_documents(
    find: Callable[[pa.Array], pa.Array],
    compute: Callable[[Jsonb], Any],
    *,
    only_objects: bool = False,
) -> Compute:
    """The computation of a column.

    Args:
        find: for documents without escapes and NULL.
        compute: for one document.
        only_objects: other documents are computed one by one, too.
    """

    def run(documents: Datum, _: Datum) -> Datum:
        if isinstance(documents, pa.Scalar) or not len(documents):
            raise NoColumn
        null = make_scalar("null", _TEXT)
        whole = documents.fill_null(null)
        is_odd = pc.match_substring(whole, "\\")
        if only_objects:
            is_odd = pc.or_(is_odd, pc.invert(pc.starts_with(whole, "{")))
        values = find(pc.if_else(is_odd, null, whole))
        if pc.any(is_odd).as_py():
            computed = [compute(parse_jsonb(text)) for text in whole.filter(is_odd).to_pylist()]
            scalars = [make_scalar(value, values.type) for value in computed]
            replaced = pa.concat_arrays([pa.repeat(value, 1) for value in scalars])
            values = pc.replace_with_mask(values, is_odd, replaced)
        if not documents.null_count:
            return values
        return pc.if_else(documents.is_valid(), values, make_scalar(None, values.type))

    return run


def _text_of_member(site: Site) -> Compute | None:
    """``->>`` with a constant name."""
    if (key := _key(site)) is None:
        return None
    compute = KERNELS["jsonb_object_field_text(jsonb,text)"].make(site)
    return _of_documents(
        lambda documents: _Members.find(documents, key).texts(),
        lambda document: compute(document, key),
    )


def _member(site: Site) -> Compute | None:
    """``->`` with a constant name."""
    if (key := _key(site)) is None:
        return None
    compute = KERNELS["jsonb_object_field(jsonb,text)"].make(site)

    def print_member(document: Jsonb) -> str | None:
        value = compute(document, key)
        return None if value is None else format_jsonb(value.content)

    return _of_documents(lambda documents: _Members.find(documents, key).documents(), print_member)


def _exists(site: Site) -> Compute | None:
    """``?`` with a constant name; it is also true for strings, and for arrays that have one."""
    if (key := _key(site)) is None:
        return None
    test = KERNELS["jsonb_exists(jsonb,text)"].make(site)

    return _of_documents(
        lambda documents: boolean_array(_Members.find(documents, key).is_there),
        lambda document: test(document, key),
        only_objects=True,
    )


def _contains(site: Site) -> Compute | None:
    """``@>`` with a constant object of texts, booleans and nulls."""
    wanted = site.constants[1]
    content = wanted.content if isinstance(wanted, Jsonb) else None
    if not isinstance(content, dict) or not content:
        return None
    if not all(_is_simple(part) for member in content.items() for part in member):
        return None
    test = KERNELS["jsonb_contains(jsonb,jsonb)"].make(site)

    def find(documents: pa.Array) -> pa.Array:
        truth: Any = None
        for key, value in content.items():
            values = _Members.find(documents, key).documents()
            text = make_scalar(format_jsonb(value), _TEXT)
            has_member = pc.equal(values, text).fill_null(False)
            truth = has_member if truth is None else pc.and_(truth, has_member)
        return truth

    return _of_documents(find, lambda document: test(document, wanted))


def _compared(signature: str) -> Callable[[Site], Compute | None]:
    """A comparison with a constant: computed for each distinct document."""

    def make(site: Site) -> Compute | None:
        wanted = site.constants[1]
        if not isinstance(wanted, Jsonb):
            return None
        test = KERNELS[signature].make(site)

        def run(documents: Datum, _: Datum) -> Datum:
            encoded = documents.dictionary_encode()
            truths = [test(parse_jsonb(text), wanted) for text in encoded.dictionary.to_pylist()]
            places = encoded.indices.cast(pa.int64())
            return boolean_array(np.array(truths, np.bool_)).take(places)

        return run

    return make


MAKERS: Final[dict[str, Callable[[Site], Compute | None]]] = {
    "jsonb_object_field_text(jsonb,text)": _text_of_member,
    "jsonb_object_field(jsonb,text)": _member,
    "jsonb_exists(jsonb,text)": _exists,
    "jsonb_contains(jsonb,jsonb)": _contains,
    **{name: _compared(name) for name in ("jsonb_eq(jsonb,jsonb)", "jsonb_ne(jsonb,jsonb)")},
}
"""For functions of documents, what makes the computation of a call; None: rows only."""
