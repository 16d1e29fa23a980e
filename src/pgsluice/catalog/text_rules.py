"""Reads how a database treats text: its encoding and its collations.

The case of letters and the classes of characters depend on the version of the server's C library or
ICU. So they are queried from the server, once in a process for each collation.

Source: pg_database, pg_collation; src/backend/utils/adt/pg_locale.c, formatting.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgsluice.catalog import Connection
from pgsluice.definitions.text_rules import (
    CLASSES,
    CODECS,
    DEFAULT_COLLATION,
    Characters,
    CollationRules,
    TextRules,
)

_C_NAMES: Final = ("C", "POSIX")
#: In UTF8, characters from here on are not asked for: rare ideographs, without case.
_FIRST_UNKNOWN: Final = 0x20000

_DATABASE = """
SELECT pg_catalog.pg_encoding_to_char(d.encoding), pg_catalog.to_jsonb(d)
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""
_COLLATIONS = """
SELECT c.oid::bigint,
       pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.collname),
       pg_catalog.to_jsonb(c)
FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
WHERE c.oid = ANY (%s)
"""


_ASKED: Final[dict[tuple[object, ...], Characters]] = {}
"""The characters that this process has queried, with the versions that they depend on."""


def text_rules(
    connection: Connection, collations: Iterable[int], *, with_characters: bool
) -> TextRules:
    """Read the rules of the connection's database.

    Args:
        collations: OIDs of the columns' collations.
        with_characters: query the characters of collations other than C, too: about half a second
            of the server's time for each, once in a process.
    """
    row = connection.execute(_DATABASE).fetchone()
    assert row is not None
    encoding, database = row
    facts: list[tuple[int, str, Mapping[str, Any]]] = [(DEFAULT_COLLATION, "", database)]
    wanted = sorted({oid for oid in collations if oid not in (0, DEFAULT_COLLATION)})
    if wanted:
        facts += connection.execute(_COLLATIONS, [wanted]).fetchall()
    rules = []
    for oid, name, catalog_row in facts:
        collation = _Collation.of(catalog_row, int(database["encoding"]))
        characters = None
        if with_characters and not collation.is_c:
            characters = _characters(connection, encoding, name, collation)
        known = CollationRules(collation.has_byte_order, collation.is_c, characters)
        rules.append((oid, known))
    return TextRules(encoding, tuple(rules))


@dataclass(frozen=True, slots=True)
class _Collation:
    """A row of pg_database or pg_collation, whose column names differ between versions."""

    provider: str
    collate: str
    ctype: str
    locale: str
    version: str

    @classmethod
    def of(cls, row: Mapping[str, Any], encoding: int) -> _Collation:
        prefix = "dat" if "datname" in row else "coll"
        facts = {name.removeprefix(prefix): value for name, value in row.items() if value}
        collate = facts.get("collate", "")
        return cls(
            provider=facts.get("locprovider", facts.get("provider", "c")),
            collate=collate,
            ctype=facts.get("ctype", ""),
            locale=facts.get("locale", facts.get("iculocale", collate)),
            version=f"{facts.get('collversion', facts.get('version'))}/{encoding}",
        )

    @property
    def has_byte_order(self) -> bool:
        return self.provider == "b" or (self.provider == "c" and self.collate in _C_NAMES)

    @property
    def is_c(self) -> bool:
        name = self.locale if self.provider == "b" else self.ctype
        return self.provider != "i" and name in _C_NAMES

    @property
    def contextual(self) -> str:
        """Whether the case of a letter depends on its neighbours, as in ICU and PostgreSQL's own
        full mapping."""
        if self.provider == "b":
            return "" if self.locale in ("C", "C.UTF-8", "C.UTF8") else "\u03a3"
        if self.provider == "c":
            return ""
        language = self.locale.replace("_", "-").split("-")[0].lower()
        if language in ("lt", "el"):  # accents and diphthongs
            return "\u0080-\U0010ffff"
        return "\u03a3\u0307"


def _characters(
    connection: Connection, encoding: str, name: str, collation: _Collation
) -> Characters:
    info = connection.info
    key = (info.host, info.port, info.dbname, info.server_version, encoding, name, collation)
    if key not in _ASKED:
        _ASKED[key] = _ask(connection, encoding, name, collation.contextual)
    return _ASKED[key]


_CODES_OF_UTF8 = """(SELECT i, i - row_number() OVER (ORDER BY i) AS range
    FROM generate_series(1, 131071) i WHERE i NOT BETWEEN 55296 AND 57343 {only}) codes"""
_CODES = "(SELECT i, i AS range FROM unnest('{codes}'::int[]) i {{only}}) codes"
_CASED = """
SELECT string_agg(concat_ws(chr(9), c, lower, upper), chr(10)) FROM (
    SELECT c, lower(c {collate}) AS lower, upper(c {collate}) AS upper
    FROM (SELECT chr(i) AS c FROM {codes}) characters
) cased WHERE c <> lower COLLATE "C" OR c <> upper COLLATE "C"
"""
_CLASS = """
SELECT string_agg(chr(first) || chr(last), '') FROM (
    SELECT min(i) AS first, max(i) AS last FROM {codes} GROUP BY range
) ranges
"""
_OF_CLASS = "{word} chr(i) ~ '[[:{name}:]]' {collate}"


def _ask(connection: Connection, encoding: str, name: str, contextual: str) -> Characters:
    collate = f"COLLATE {name}" if name else ""
    codes, first_unknown = _codes(encoding)

    def text(query: str) -> str:
        row = connection.execute(query.encode()).fetchone()
        return (row[0] or "") if row is not None else ""

    word = "AND" if encoding == "UTF8" else "WHERE"
    classes = tuple(
        (kind, text(_CLASS.format(codes=codes.format(
            only=_OF_CLASS.format(word=word, name=kind, collate=collate)
        ))))
        for kind in CLASSES
    )  # fmt: skip
    folded = connection.execute(f"SELECT 'I' ~* 'i' {collate} AND 'i' ~* 'I' {collate}".encode())
    return Characters(
        cased=text(_CASED.format(codes=codes.format(only=""), collate=collate)),
        classes=classes,
        first_unknown=first_unknown,
        contextual=contextual,
        folds_plainly=folded.fetchone() == (True,),
    )


def _codes(encoding: str) -> tuple[str, int]:
    """The code points that chr() accepts, as an SQL table, and the first code point that is
    unknown."""
    if encoding == "UTF8":
        return _CODES_OF_UTF8, _FIRST_UNKNOWN
    codec = CODECS.get(encoding)
    if codec is None:
        return _CODES.format(codes=set(range(1, 128))), 128
    known = {code for code in range(1, 256) if bytes([code]).decode(codec, "ignore")}
    return _CODES.format(codes=known), 0x110000
