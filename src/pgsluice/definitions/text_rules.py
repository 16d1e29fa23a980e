"""How a database treats text: its encoding, and what its collations define about order and
characters.

Row filters depend on it: ``lower('I')`` is ``ı`` in a Turkish database, and ``octet_length('é')``
is 1 in a LATIN1 database. The case of letters and the classes of characters are queried from the
server (:func:`pgsluice.catalog.text_rules.text_rules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_COLLATION: Final = 100
#: Built-in collations that order text by its bytes and know the case of ASCII letters only.
_C_COLLATIONS: Final = (950, 951, 962)  # "C", "POSIX", ucs_basic
#: Built-in collations that order text by its bytes.
_BYTE_ORDER: Final = (*_C_COLLATIONS, 811, 6411)  # and pg_c_utf8, pg_unicode_fast

#: Python's names of the encodings with one byte a character, and of UTF8.
CODECS: Final = {
    "UTF8": "utf-8",
    **{f"LATIN{n}": f"iso8859-{part}" for n, part in zip(
        range(1, 11), (1, 2, 3, 4, 9, 10, 13, 14, 15, 16), strict=True
    )},
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in range(5, 9)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}  # fmt: skip

CLASSES: Final = ("alpha", "digit", "alnum", "upper", "lower", "space", "punct")


@dataclass(frozen=True, slots=True)
class Characters:
    """What a collation defines about single characters, as queried from the server.

    Attributes:
        cased: one line for each character with case: itself, its lower case and its upper case,
            separated by tabs.
        classes: for each of ``CLASSES``, the first and last characters of its ranges, alternately.
        first_unknown: the first code point that is unknown.
        contextual: characters whose case depends on their neighbours, or changes that of their
            neighbours, as the inside of brackets in a regular expression.
        folds_plainly: whether ``~*`` treats i and I as the same letter.
    """

    cased: str
    classes: tuple[tuple[str, str], ...]
    first_unknown: int
    contextual: str = ""
    folds_plainly: bool = True


@dataclass(frozen=True, slots=True)
class CollationRules:
    """The rules of one collation.

    Attributes:
        has_byte_order: text is ordered by its bytes.
        is_c: only ASCII letters have case, and only ASCII characters a class.
        characters: the characters of a collation that is not C; None: those beyond ASCII are
            unknown.
    """

    has_byte_order: bool = False
    is_c: bool = False
    characters: Characters | None = None


_UNKNOWN: Final = CollationRules()


@dataclass(frozen=True, slots=True)
class TextRules:
    """A database's encoding and collations.

    Attributes:
        encoding: as pg_encoding_to_char() names it.
        collations: by OID, those that the database's columns have.
    """

    encoding: str = "UTF8"
    collations: tuple[tuple[int, CollationRules], ...] = ()

    def collation(self, oid: int) -> CollationRules:
        """The rules of a collation; for an unknown collation, rules without any knowledge."""
        if oid in _C_COLLATIONS:
            return CollationRules(has_byte_order=True, is_c=True)
        known = dict(self.collations).get(oid, _UNKNOWN)
        if oid in _BYTE_ORDER:
            return CollationRules(True, known.is_c, known.characters)
        return known

    @property
    def codec(self) -> str | None:
        """Python's name of the encoding; None if pgsluice does not compute bytes of it."""
        return CODECS.get(self.encoding)

    @property
    def has_code_point_order(self) -> bool:
        """Whether the order of a text's bytes is that of its code points."""
        return self.encoding in ("UTF8", "LATIN1")

    def without_characters(self) -> TextRules:
        """The rules for a filter that needs no characters; they are much smaller."""
        return TextRules(
            self.encoding,
            tuple((oid, CollationRules(r.has_byte_order, r.is_c)) for oid, r in self.collations),
        )


ANY_LOCALE: Final = TextRules()
"""The rules of a UTF8 database of which nothing else is known."""
