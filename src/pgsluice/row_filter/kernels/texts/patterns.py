r"""LIKE, ILIKE, SIMILAR TO and regular expressions.

A regular expression has to be a constant. It is parsed and written again for re2: ``.`` and
``[^a]`` match a newline, ``^`` and ``$`` are the ends of the text, ``\d`` and the named classes
mean ASCII. A value that is not ASCII cannot be matched against a class, or ignoring case.
Source: src/backend/utils/adt/like_match.c; the manual, "POSIX Regular Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, kernel, sited
from pgsluice.row_filter.kernels.texts.letters import cased
from pgsluice.row_filter.kernels.texts.posix_regex import PosixRegex
from pgsluice.row_filter.values import CannotKnow, SqlError


def parse_like(pattern: str) -> list[str | int | None] | None:
    """Split a LIKE pattern into characters, ``1`` for any character and None for any text.

    None for a pattern that ends in its escape character: the text decides if that is an error.
    """
    parts: list[str | int | None] = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
            if index == len(pattern):
                return None
            parts.append(pattern[index])
        elif character == "%":
            parts.append(None)
        else:
            parts.append(1 if character == "_" else character)
        index += 1
    return parts


def like_matcher(pattern: str) -> Callable[[str], bool]:
    """Make the function that tests whether a text matches a LIKE pattern."""
    parts = parse_like(pattern)
    if parts is None:
        return _ending_in_escape(pattern)
    *first, last = _segments(parts)
    source = f"{_leftmost(first)}.*{last}" if first else last
    whole = re.compile(source, re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def _segments(parts: list[str | int | None]) -> list[str]:
    """Regular expressions of what is between the ``%`` of a pattern."""
    segments = [""]
    for part in parts:
        if part is None:
            segments.append("")
        else:
            segments[-1] += "." if part == 1 else re.escape(str(part))
    return segments


def _leftmost(segments: list[str]) -> str:
    """Find segments one after the other: the leftmost match leaves most text for the rest."""
    first, *others = segments
    return first + "".join(f"(?>.*?{segment})" for segment in others)


def _ending_in_escape(pattern: str) -> Callable[[str], bool]:
    """The test of a pattern that ends in its escape character, which no text matches.

    The server fails for a text of which something is left when it gets to that character. It takes
    a last run of ``%`` and ``_`` together: something has to be left before its first ``%``.
    """
    parts = parse_like(pattern[:-1]) or []
    end = len(parts)
    while end and parts[end - 1] in (None, 1):
        end -= 1
    last, left = parts[end:], 1
    if None in last:
        end += last.index(None)
        left = max(parts[end:].count(1), 1)
    else:
        end = len(parts)
    start = re.compile(_leftmost(_segments(parts[:end])) + "." * left, re.DOTALL)

    def run(text: str) -> bool:
        if start.match(text):
            message = "LIKE pattern must not end with escape character"
            raise SqlError("invalid_escape_sequence", message)
        return False

    return run


def _like(site: Site) -> Compute:
    return _matching(site, str)


def _ilike(site: Site) -> Compute:
    return _matching(site, cased(site, is_lower=True))


def _like_bytes(site: Site) -> Compute:
    return _matching(site, lambda data: data.decode("latin-1"))


def _matching(site: Site, fold: Callable[[Any], str]) -> Compute:
    """LIKE of texts that a function makes of both arguments."""
    constant = site.constants[1]
    if isinstance(constant, str | bytes):
        matcher = like_matcher(fold(constant))
        return lambda text, _: matcher(fold(text))
    return lambda text, pattern: like_matcher(fold(pattern))(fold(text))


def read_regex(site: Site, ignore_case: bool) -> PosixRegex:
    """The pattern of a call, which has to be constant; raises Refused."""
    pattern = site.constants[1]
    if not isinstance(pattern, str):
        raise Refused(
            "a regular expression that is not a constant cannot be checked to mean the same here"
        )
    return PosixRegex.parse(pattern, ignore_case, site.collation_rules)


def _regex(site: Site, ignore_case: bool) -> Callable[[str, str], bool]:
    regex = read_regex(site, ignore_case)
    return lambda text, _: regex.is_found(text)


def _negated(make: Callable[[Site], Compute]) -> Callable[[Site], Compute]:
    def made(site: Site) -> Compute:
        positive = make(site)
        return lambda a, b: not positive(a, b)

    return made


def _register() -> None:
    sited("bytealike(bytea,bytea)", "like(bytea,bytea)")(_like_bytes)
    sited("byteanlike(bytea,bytea)", "notlike(bytea,bytea)")(_negated(_like_bytes))
    sited("like(text,text)", "like(name,text)")(_like)
    sited("notlike(text,text)", "notlike(name,text)")(_negated(_like))
    for name in ("text", "name", "bpchar"):
        arguments = f"({name},text)"
        sited(f"{name}like{arguments}")(_like)
        sited(f"{name}nlike{arguments}")(_negated(_like))
        sited(f"{name}iclike{arguments}", reads_characters=True)(_ilike)
        sited(f"{name}icnlike{arguments}", reads_characters=True)(_negated(_ilike))
        for infix, ignore_case in (("regex", False), ("icregex", True)):
            make = partial(_regex, ignore_case=ignore_case)
            sited(f"{name}{infix}eq{arguments}", reads_characters=True)(make)
            sited(f"{name}{infix}ne{arguments}", reads_characters=True)(_negated(make))
    sited("regexp_like(text,text)", reads_characters=True)(partial(_regex, ignore_case=False))


_register()


@kernel("like_escape(text,text)")
def _like_escape(pattern: str, escape: str) -> str:
    """The same pattern with a backslash as its escape character."""
    if escape == "":
        return pattern.replace("\\", "\\\\")
    if len(escape) != 1:
        raise SqlError("invalid_escape_sequence", "invalid escape string")
    if escape == "\\":
        return pattern
    regex: list[str] = []
    after_escape = False
    for character in pattern:
        if character == escape and not after_escape:
            regex.append("\\")
            after_escape = True
        elif character == "\\":
            regex.append("\\" if after_escape else "\\\\")
            after_escape = False
        else:
            regex.append(character)
            after_escape = False
    return "".join(regex)


_PLAIN_BRACKETS: Final = re.compile(r"\[\^?[A-Za-z0-9_% -]+\]")
_SIMILAR: Final = {"%": ".*", "_": ".", "(": "(?:", **{one: f"\\{one}" for one in "\\.^$"}}


@kernel("similar_to_escape(text)")
def _similar(pattern: str) -> str:
    return similar_to_regex(pattern, "\\")


@kernel("similar_to_escape(text,text)")
def _similar_with_escape(pattern: str, escape: str) -> str:
    if len(escape) > 1:
        raise SqlError("invalid_escape_sequence", "invalid escape string")
    return similar_to_regex(pattern, escape)


def similar_to_regex(pattern: str, escape: str) -> str:
    """SIMILAR TO's pattern as a regular expression.

    Raises:
        CannotKnow: its brackets hold more than letters, digits and ranges, which versions of the
            server treat differently; or it has the separators of SUBSTRING.
    """
    regex: list[str] = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        brackets = _PLAIN_BRACKETS.match(pattern, index)
        if escape and character == escape:
            index += 1
            if pattern[index : index + 1] == '"':
                raise CannotKnow("a separator in a pattern of SIMILAR TO is not computed here")
            regex += [f"\\{escaped}" for escaped in pattern[index : index + 1]]
        elif brackets is not None and (not escape or escape not in brackets[0]):
            regex.append(brackets[0])
            index = brackets.end() - 1
        elif character == "[":
            raise CannotKnow("brackets like these in a pattern of SIMILAR TO are not computed here")
        else:
            regex.append(_SIMILAR.get(character, character))
        index += 1
    return f"^(?:{''.join(regex)})$"
