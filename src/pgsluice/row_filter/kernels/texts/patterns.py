r"""LIKE, ILIKE, SIMILAR TO and regular expressions.

A regular expression has to be a constant. It is parsed and written again for re2: ``.`` and
``[^a]`` match a newline, ``^`` and ``$`` are the ends of the text, ``\d`` and the named classes
mean ASCII. A value that is not ASCII cannot be matched against a class, or ignoring case.
Source: src/backend/utils/adt/like_match.c; the manual, "POSIX Regular Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, kernel, sited
from pgsluice.row_filter.kernels.texts.letters import lower_as
from pgsluice.row_filter.kernels.texts.posix_regex import PosixRegex
from pgsluice.row_filter.values import CannotKnow, SqlError

S = TypeVar("S", str, bytes)
_SPECIAL: Final = re.compile(r"[%_\\]")


def _escape_at_end() -> SqlError:
    return SqlError("invalid_escape_sequence", "LIKE pattern must not end with escape character")


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
        return lambda text: _match_slowly(text, pattern) is True
    segments = [""]
    for part in parts:
        if part is None:
            segments.append("")
        else:
            segments[-1] += "." if part == 1 else re.escape(str(part))
    # between two %, the leftmost match leaves most text for the rest
    source, *middle = segments
    if middle:
        *middle, tail = middle
        source += "".join(f"(?>.*?{segment})" for segment in middle) + ".*" + tail
    whole = re.compile(source, re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def _match_slowly(text: str, pattern: str) -> bool | None:
    """Match in the server's order, because how far it gets decides whether it reports an error.

    Returns:
        None if no later start can match either: the text ended first.
    """
    t = p = 0
    while t < len(text) and p < len(pattern):
        character = pattern[p]
        if character == "\\":
            p += 1
            if p == len(pattern):
                raise _escape_at_end()
            if text[t] != pattern[p]:
                return False
        elif character == "%":
            return _match_after_any(text[t:], pattern[p + 1 :])
        elif character not in ("_", text[t]):
            return False
        t += 1
        p += 1
    if t < len(text):
        return False
    return not pattern[p:].strip("%") or None


def _match_after_any(text: str, pattern: str) -> bool | None:
    """Match the rest of a pattern after a %."""
    while pattern and pattern[0] in "%_":
        if pattern[0] == "_":
            if not text:
                return None
            text = text[1:]
        pattern = pattern[1:]
    if not pattern:
        return True
    first = pattern[0]
    if first == "\\":
        if len(pattern) < 2:
            raise _escape_at_end()
        first = pattern[1]
    while text:
        if text[0] == first:
            matched = _match_slowly(text, pattern)
            if matched is not False:
                return matched
        text = text[1:]
    return None


def _like(site: Site) -> Callable[[str, str], bool]:
    pattern = site.constants[1]
    if isinstance(pattern, str):
        matcher = like_matcher(pattern)
        return lambda text, _: matcher(text)
    return lambda text, pattern: like_matcher(pattern)(text)


def _ilike(site: Site) -> Callable[[str, str], bool]:
    lower = lower_as(site)
    constant = site.constants[1]
    if isinstance(constant, str):
        matcher = like_matcher(lower(constant))
        return lambda text, _: matcher(lower(text))

    def run(text: str, pattern: str) -> bool:
        return like_matcher(lower(pattern))(lower(text))

    return run


def _like_bytes(site: Site) -> Callable[[bytes, bytes], bool]:
    def run(text: bytes, pattern: bytes) -> bool:
        return like_matcher(pattern.decode("latin-1"))(text.decode("latin-1"))

    return run


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
            make = _regex_maker(ignore_case)
            sited(f"{name}{infix}eq{arguments}", reads_characters=True)(make)
            sited(f"{name}{infix}ne{arguments}", reads_characters=True)(_negated(make))
    sited("regexp_like(text,text)", reads_characters=True)(_regex_maker(False))


def _regex_maker(ignore_case: bool) -> Callable[[Site], Compute]:
    return lambda site: _regex(site, ignore_case)


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
