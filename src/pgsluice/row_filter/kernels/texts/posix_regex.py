"""PostgreSQL's regular expressions, as far as they mean the same in re2.

Only whether there is a match matters here, so greediness and longest-match rules do not. Anything
else is refused: back references, lookaround, word boundaries, embedded options, directors,
collating elements, escapes with letters other than d s w D S W n r t.
Source: the manual, section "Regular Expression Details".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.definitions.text_rules import CollationRules
from pgsluice.row_filter.kernels.kernel import Refused
from pgsluice.row_filter.kernels.scalars import make_scalar
from pgsluice.row_filter.kernels.texts.letters import (
    ASCII_CLASSES,
    class_ranges,
    unknown_characters,
)
from pgsluice.row_filter.values import CannotKnow

_CLASSES: Final = {"d": "digit", "s": "space", "w": "alnum"}
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}
_MAX_REPEATS: Final = 255
_MAX_PATTERN: Final = 1000
_MAX_DEPTH: Final = 50


def _refused(construct: str) -> Refused:
    return Refused(f"the regular expression has {construct}, which may not mean the same here")


def _literal(character: str) -> str:
    return character if character.isalnum() or ord(character) > 127 else f"\\x{ord(character):02x}"


@dataclass(frozen=True, slots=True)
class PosixRegex:
    """A regular expression for re2.

    Attributes:
        source: to be searched for anywhere in a text.
        unknown: matches texts with a character that is in no known class; None: the pattern has
            no class, or the collation is C, where characters beyond ASCII have none.
    """

    source: str
    unknown: str | None

    @classmethod
    def parse(cls, pattern: str, ignore_case: bool, rules: CollationRules) -> PosixRegex:
        """Parse a pattern; raises Refused for what re2 does not read in the same way."""
        if len(pattern) > _MAX_PATTERN:
            raise _refused(f"more than {_MAX_PATTERN} characters")
        if ignore_case and not rules.is_c:
            _check_case(pattern, rules)
        reader = _Reader(pattern, ignore_case, rules)
        source = reader.alternatives(0)
        if reader.at < len(pattern):
            raise _refused("an unmatched parenthesis")
        unknown = None
        if reader.has_classes and not rules.is_c:
            unknown = unknown_characters(rules.characters, with_context=False)
        regex = cls(f"(?s)(?:{source})", unknown)
        try:
            regex.is_found("")
        except pa.ArrowInvalid:
            raise _refused("something that re2 does not take") from None
        return regex

    def is_found(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text; raises CannotKnow."""
        if self.unknown is not None and not text.isascii() and re.search(self.unknown, text):
            raise CannotKnow("only the server knows the class of one of its characters")
        matches = pc.match_substring_regex(make_scalar(text, pa.large_string()), self.source)
        return bool(matches.as_py())


def _check_case(pattern: str, rules: CollationRules) -> None:
    """The server takes both cases of the pattern's letters; of ASCII letters they are plain."""
    is_plain = rules.characters is None or rules.characters.folds_plainly
    if not pattern.isascii() or not is_plain:
        raise Refused(
            "only the server knows the other case of the regular expression's letters",
            'add COLLATE "C", or compare lower(...)',
        )


class _Reader:
    """Parses a pattern by recursive descent."""

    def __init__(self, pattern: str, ignore_case: bool, rules: CollationRules) -> None:
        self.pattern = pattern
        self.ignore_case = ignore_case
        self.rules = rules
        self.at = 0
        self.has_classes = False

    def _peek(self) -> str:
        return self.pattern[self.at] if self.at < len(self.pattern) else ""

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise _refused("no end")
        self.at += 1
        return character

    def alternatives(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise _refused("too many levels of parentheses")
        branches = [self._branch(depth)]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._branch(depth))
        return "|".join(branches)

    def _branch(self, depth: int) -> str:
        regex = ""
        while self._peek() not in ("", "|", ")"):
            atom, may_repeat = self._atom(depth)
            regex += atom + self._quantifier(may_repeat)
        return regex

    def _atom(self, depth: int) -> tuple[str, bool]:
        character = self._take()
        match character:
            case "(":
                return self._group(depth), True
            case "[":
                return self._brackets(), True
            case ".":
                return ".", True
            case "^":
                return r"\A", False
            case "$":
                return r"\z", False
            case "\\":
                return self._escape(), True
            case "*" | "+" | "?" | "{":
                raise _refused("a quantifier without anything before it")
            case _:
                return self._either_case(character), True

    def _either_case(self, character: str) -> str:
        """A literal character; re2's own way to ignore case would go beyond ASCII."""
        if self.ignore_case and character.isascii() and character.isalpha():
            return f"[{character.lower()}{character.upper()}]"
        return _literal(character)

    def _group(self, depth: int) -> str:
        if self._peek() == "?":
            if self.pattern[self.at : self.at + 2] != "?:":
                raise _refused("a lookaround or an option")
            self.at += 2
        inner = self.alternatives(depth + 1)
        if self._take() != ")":
            raise _refused("an unmatched parenthesis")
        return f"(?:{inner})"

    def _escape(self) -> str:
        character = self._take()
        if character in "dswDSW":
            self.has_classes = True
            negation = "^" if character.isupper() else ""
            return f"[{negation}{self._class_escape(character.lower())}]"
        if character in _CONTROL:
            return _literal(_CONTROL[character])
        if character.isalnum():
            raise _refused(f"the escape \\{character}")
        return _literal(character)

    def _quantifier(self, may_repeat: bool) -> str:
        character = self._peek()
        if character not in ("*", "+", "?", "{") or not character:
            return ""
        if not may_repeat:
            raise _refused("a quantifier after an anchor")
        self.at += 1
        quantifier = self._bounds() if character == "{" else character
        if self._peek() == "?":
            self.at += 1  # greediness does not matter
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise _refused("two quantifiers in a row")
        return quantifier

    def _bounds(self) -> str:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at : max(end, self.at)].partition(",")
        numbers = [low, high] if high else [low]
        if end < 0 or not all(n.isascii() and n.isdigit() and len(n) < 9 for n in numbers):
            raise _refused("a brace that is no bound")
        if any(int(n) > _MAX_REPEATS for n in numbers) or (high and int(high) < int(low)):
            raise _refused("a bound out of range")
        self.at = end + 1
        return "{" + low + comma + high + "}"

    def _brackets(self) -> str:
        negation = ""
        if self._peek() == "^":
            negation = "^"
            self.at += 1
        parts: list[str] = []
        is_first = True
        while self._peek() != "]" or is_first:
            parts.append(self._bracket_item())
            is_first = False
        self.at += 1
        return f"[{negation}{''.join(parts)}]"

    def _bracket_item(self) -> str:
        if self.pattern.startswith(("[.", "[=", "[:<:]", "[:>:]"), self.at):
            raise _refused("a collating element")
        if self.pattern.startswith("[:", self.at):
            return self._no_range(self._named_class())
        low = self._bracket_character()
        if len(low) != 1:
            return self._no_range(low)
        if self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            if self.pattern.startswith(("[.", "[=", "[:"), self.at):
                raise _refused("a collating element")
            high = self._bracket_character()
            if len(high) != 1 or ord(high) < ord(low):
                raise _refused("a range that goes down")
            return self._no_range(self._span(low, high))
        return self._span(low, low)

    def _no_range(self, last: str) -> str:
        """Refuse a hyphen after an element that cannot begin a range."""
        if self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
            raise _refused("a range that begins with a class or another range")
        return last

    def _span(self, low: str, high: str) -> str:
        """A range in brackets, with the other case of its ASCII letters."""
        span = f"{_literal(low)}-{_literal(high)}" if low != high else _literal(low)
        if self.ignore_case:
            for first, last, offset in (("A", "Z", 32), ("a", "z", -32)):
                start, end = max(low, first), min(high, last)
                if start <= end:
                    span += f"{chr(ord(start) + offset)}-{chr(ord(end) + offset)}"
        return span

    def _bracket_character(self) -> str:
        """One character, or a class as re2 writes it."""
        character = self._take()
        if character != "\\":
            return character
        escaped = self._take()
        if escaped in "dsw":
            self.has_classes = True
            return self._class_escape(escaped)
        if escaped.isalnum():
            if escaped in _CONTROL:
                return _CONTROL[escaped]
            raise _refused(f"the escape \\{escaped} in brackets")
        return escaped

    def _named_class(self) -> str:
        end = self.pattern.find(":]", self.at)
        name = self.pattern[self.at + 2 : end] if end > 0 else ""
        if name not in ASCII_CLASSES:
            raise _refused("a class with an unknown name")
        self.has_classes = True
        self.at = end + 2
        is_any_case = self.ignore_case and name in ("upper", "lower")
        return class_ranges("alpha" if is_any_case else name, self.rules)

    def _class_escape(self, character: str) -> str:
        underscore = "_" if character == "w" else ""
        return class_ranges(_CLASSES[character], self.rules) + underscore
