"""The case and the classes of letters under a call's collation, and the bytes of a text.

They depend on the server's locale and encoding. A filter is refused when it is made if the
encoding is not one whose bytes are known here. A character of which the server was not asked, or
whose case its neighbours decide, raises CannotKnow for its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from pgsluice.definitions.text_rules import Characters, CollationRules
from pgsluice.row_filter.kernels.kernel import Refused, Site
from pgsluice.row_filter.values import CannotKnow

_ASCII_LOWER: Final = str.maketrans({chr(n): chr(n + 32) for n in range(65, 91)})
_ASCII_UPPER: Final = str.maketrans({chr(n): chr(n - 32) for n in range(97, 123)})
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
#: The classes of ASCII characters, as re2 writes them; blank and xdigit are ASCII everywhere.
ASCII_CLASSES: Final = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r" \t\n\v\f\r",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
}


def cased(site: Site, is_lower: bool) -> Callable[[str], str]:
    """lower() or upper() under the call's collation."""
    rules = site.collation_rules
    ascii_case = _ASCII_LOWER if is_lower else _ASCII_UPPER
    if rules.is_c:
        return lambda text: text.translate(ascii_case)
    table = ascii_case if rules.characters is None else _cases(rules.characters)[not is_lower]
    unknown = re.compile(unknown_characters(rules.characters, with_context=True))

    def run(text: str) -> str:
        if not text.isascii() and unknown.search(text):
            raise CannotKnow(
                "the case of one of its characters depends on the server's locale in a way that"
                ' is not known here; COLLATE "C" treats only ASCII letters'
            )
        return text.translate(table)

    return run


@lru_cache(maxsize=64)
def _cases(characters: Characters) -> tuple[dict[int, str], dict[int, str]]:
    """The lower and upper case of each character."""
    rows = [line.split("\t") for line in characters.cased.split("\n") if line]
    return (
        {ord(character): lower for character, lower, _ in rows},
        {ord(character): upper for character, _, upper in rows},
    )


def is_plain_for_ascii(rules: CollationRules) -> bool:
    """Whether ASCII letters have their usual case, which Turkish does not give them."""
    if rules.is_c or rules.characters is None:
        return True
    lower, upper = _cases(rules.characters)
    return all(
        lower.get(code, chr(code)) == chr(code).lower()
        and upper.get(code, chr(code)) == chr(code).upper()
        for code in range(128)
    )


def unknown_characters(characters: Characters | None, *, with_context: bool) -> str:
    """A regular expression, for Python and re2, of characters of which nothing is known."""
    if characters is None:
        return _NOT_ASCII.pattern
    context = characters.contextual if with_context else ""
    return f"[{context}{chr(characters.first_unknown)}-\U0010ffff]"


def class_ranges(name: str, rules: CollationRules) -> str:
    """A class's characters, as re2 writes them within brackets."""
    if rules.is_c or rules.characters is None or name in ("blank", "xdigit"):
        return ASCII_CLASSES[name]
    bounds = dict(rules.characters.classes)[name]
    return "".join(
        rf"\x{{{ord(first):x}}}-\x{{{ord(last):x}}}"
        for first, last in zip(bounds[::2], bounds[1::2], strict=True)
    )


def encoder(site: Site) -> Callable[[str], bytes]:
    """The bytes of a text in the database's encoding; raises Refused."""
    codec = site.text_rules.codec
    if codec is None:
        raise Refused(f"the bytes of text in the encoding {site.text_rules.encoding} are not known")
    return lambda text: text.encode(codec)
