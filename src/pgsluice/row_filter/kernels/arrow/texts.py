"""Text on whole columns: lengths, prefixes, the case of letters, and constant patterns.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute as Compute
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, make_scalar
from pgsluice.row_filter.kernels.texts.letters import is_plain_for_ascii
from pgsluice.row_filter.kernels.texts.patterns import parse_like, read_regex

Maker = Callable[[Site], Compute | None]


def without_blanks(text: Datum) -> Datum:
    """A column of character(n) without its padding; constants have none."""
    return text if isinstance(text, pa.Scalar) else pc.utf8_rtrim(text, " ")


def _left(text: Datum, count: Datum) -> Datum:
    if not isinstance(count, pa.Scalar) or count.as_py() < 0:
        raise NoColumn
    return pc.utf8_slice_codeunits(text, start=0, stop=count.as_py())


def _length(text: Datum) -> Datum:
    return pc.utf8_length(text).cast(pa.int32())


def _starts_with(text: Datum, prefix: Datum) -> Datum:
    if not isinstance(prefix, pa.Scalar):
        raise NoColumn
    return pc.starts_with(text, prefix.as_py())


# The case of letters


def _with_letters(make: Maker) -> Maker:
    """Where ASCII letters have their usual case; under C, others have none."""

    def run(site: Site) -> Compute | None:
        rules = site.collation_rules
        compute = make(site) if is_plain_for_ascii(rules) else None
        return compute if compute is None or rules.is_c else _ascii(compute)

    return run


def _ascii(compute: Compute) -> Compute:
    def run(text: Datum, *others: Datum) -> Datum:
        if not pc.all(pc.string_is_ascii(text)).as_py():
            raise NoColumn
        return compute(text, *others)

    return run


# Patterns


def _like_constant(is_negated: bool, site: Site) -> Compute | None:
    pattern = site.constants[1]
    matches = _like(pattern) if isinstance(pattern, str) else None
    return _inverted(matches) if matches is not None and is_negated else matches


def _ilike_constant(is_negated: bool, site: Site) -> Compute | None:
    pattern = site.constants[1]
    if not isinstance(pattern, str) or not pattern.isascii():
        return None
    like = _like(pattern.lower())
    if like is None:
        return None

    def matches(text: Datum, wanted: Datum) -> Datum:
        return like(pc.ascii_lower(text), wanted)

    return _inverted(matches) if is_negated else matches


def _inverted(matches: Compute) -> Compute:
    return lambda text, wanted: pc.invert(matches(text, wanted))


def _like(pattern: str) -> Compute | None:
    """LIKE with a constant pattern; None for one that ends in its escape character.

    Patterns with escapes become regular expressions: ``match_like`` does not read all of them as
    PostgreSQL does.
    """
    parts = parse_like(pattern)
    if parts is None:
        return None
    if "\\" not in pattern:
        return lambda text, _: pc.match_like(text, pattern)
    source = "".join(
        ".*" if part is None else "." if part == 1 else f"\\x{{{ord(str(part)):x}}}"
        for part in parts
    )
    return lambda text, _: pc.match_substring_regex(text, rf"(?s)\A{source}\z")


def _regex(ignore_case: bool, is_negated: bool, site: Site) -> Compute:
    regex = read_regex(site, ignore_case)

    def matches(text: Datum, _: Datum) -> Datum:
        if regex.unknown is not None and not pc.all(pc.string_is_ascii(text)).as_py():
            raise NoColumn
        return pc.match_substring_regex(text, regex.source)

    return _inverted(matches) if is_negated else matches


def _pattern_makers() -> dict[str, Maker]:
    makers: dict[str, Maker] = {}
    for name in ("text", "name"):
        for is_negated in (False, True):
            like, equals = ("nlike", "ne") if is_negated else ("like", "eq")
            ilike = _with_letters(partial(_ilike_constant, is_negated))
            makers[f"{name}{like}({name},text)"] = partial(_like_constant, is_negated)
            makers[f"{name}ic{like}({name},text)"] = ilike
            makers[f"{name}regex{equals}({name},text)"] = partial(_regex, False, is_negated)
            makers[f"{name}icregex{equals}({name},text)"] = partial(_regex, True, is_negated)
    return makers


def _split_part(site: Site) -> Compute | None:
    """``split_part`` with a constant separator and the number of a part, counted from 1."""
    _, separator, number = site.constants
    if not isinstance(separator, str) or not separator:
        return None
    if not isinstance(number, int) or not 0 < number <= _MOST_PARTS:
        return None

    def run(text: Datum, *_: Datum) -> Datum:
        if isinstance(text, pa.Scalar):
            raise NoColumn
        parts = pc.split_pattern(text, separator, max_splits=number)
        chosen = pc.list_slice(parts, number - 1, number, return_fixed_size_list=True)
        part = pc.fill_null(pc.list_element(chosen, 0), "")
        return pc.if_else(pc.is_valid(text), part, make_scalar(None, pa.large_string()))

    return run


_MOST_PARTS: Final = 100
_LENGTHS: Final = ("length", "char_length", "character_length", "textlen")
KERNELS: Final[dict[str, Compute]] = {
    **{f"{name}(text)": _length for name in _LENGTHS},
    "left(text,int4)": _left,
    "starts_with(text,text)": _starts_with,
    "text(bpchar)": without_blanks,
}
MAKERS: Final[dict[str, Maker]] = {
    "lower(text)": _with_letters(lambda site: pc.ascii_lower),
    "upper(text)": _with_letters(lambda site: pc.ascii_upper),
    "split_part(text,text,int4)": _split_part,
    **_pattern_makers(),
}
"""For other functions of text, what makes the computation of a call; None: rows only."""
