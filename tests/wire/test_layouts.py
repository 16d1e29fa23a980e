"""The layout tables of the protocol's documents against the bytes of the wire.

Three documents describe the messages: the manual of PostgreSQL 14 in French, that of 12 in
Korean (translated by a machine), and that of 10 to 13 in English (its type bytes and widths
are lost). Each table below says what its document says, field by field; ``?`` is what it has
lost or garbled. Where a document and the wire differ, ``WRONG_IN`` says how, and the test
shows that bytes laid out as the document has it are refused.
"""

from __future__ import annotations

import pytest
from tests.wire.wire_vectors import VECTORS, Vector

from pgsluice.errors import ProtocolError
from pgsluice.wire import MESSAGES, decode_message

FRENCH_14 = "PostgreSQL 14, French"
KOREAN_12 = "PostgreSQL 12, Korean"
ENGLISH_10 = "PostgreSQL 10 to 13, English"

_BY_NAME = {vector.name: vector for vector in VECTORS}

# The parts that repeat or that other messages share, for the rows of the golden vectors.
_COLUMN = "Int8 String Int32 Int32"
_ROW = "Int16 Byte1 Int32 Byten Byte1 Byte1 Byte1 Int32 Byten"  # t n u b
_KEY_ROW = "Int16 Byte1 Int32 Byten Byte1"  # t n

# Message of the golden table -> its tag and fields as the document has them.
DOCUMENTED: dict[str, dict[str, tuple[str, str]]] = {
    FRENCH_14: {
        "Begin": ("B", "Byte1 Int64 Int64 Int32"),
        "LogicalMessage, not transactional": ("M", "Byte1 Int8 Int64 String Int32 Byten"),
        "Commit": ("C", "Byte1 Int64 Int64 Int64"),
        "Origin": ("O", "Byte1 Int64 String"),
        "Relation": ("R", f"Byte1 Int32 String String Int8 Int16 {_COLUMN} {_COLUMN} {_COLUMN}"),
        "Relation in a stream, in pg_catalog, FULL": (
            "R",
            f"Byte1 Int32 Int32 String String Int8 Int16 {_COLUMN} {_COLUMN} {_COLUMN}",
        ),
        "Type": ("Y", "Byte1 Int32 String String"),
        "Type in a stream": ("Y", "Byte1 Int32 Int32 String String"),
        "Insert, every kind of value": ("I", f"Byte1 Int32 Byte1 {_ROW}"),
        "Insert in a stream": ("I", f"Byte1 Int32 Int32 Byte1 {_ROW}"),
        "Update with an unchanged key": ("U", f"Byte1 Int32 Byte1 {_ROW}"),
        "Update of a key": ("U", f"Byte1 Int32 Byte1 {_KEY_ROW} Byte1 {_ROW}"),
        "Update under REPLICA IDENTITY FULL, in a stream": (
            "U",
            f"Byte1 Int32 Int32 Byte1 {_KEY_ROW} Byte1 {_ROW}",
        ),
        "Delete by key": ("D", f"Byte1 Int32 Byte1 {_KEY_ROW}"),
        "Delete under REPLICA IDENTITY FULL, in a stream": (
            "D",
            f"Byte1 Int32 Int32 Byte1 {_KEY_ROW}",
        ),
        "Truncate of one relation": ("T", "Byte1 Int32 Int8 Int32"),
        "Truncate of two, CASCADE RESTART IDENTITY, in a stream": (
            "T",
            "Byte1 Int32 Int32 Int8 Int32 Int32",
        ),
        "StreamStart, the first": ("S", "Byte1 Int32 Int8"),
        "StreamStop": ("E", "Byte1"),
        "StreamCommit": ("c", "Byte1 Int32 Int8 Int64 Int64 Int64"),
        "StreamAbort of a subtransaction": ("A", "Byte1 Int32 Int32"),
        "StreamAbort of the whole, under streaming 'parallel'": ("A", "Byte1 Int32 Int32"),
    },
    KOREAN_12: {
        "Begin": ("b", "Byte1 Int64 Int64 Int32"),
        "Commit": ("c", "Byte1 Int8 Int64 Int64 Int64"),
        "Origin": ("O", "Byte1 Int64 String"),
        "Relation": (
            "r",
            # The width of the column's name is garbled.
            f"Byte1 Int32 String String Int8 Int16{' Int8 ? Int32 Int32' * 3}",
        ),
        "Type": ("y", "Byte1 Int32 String String"),
        "Insert, every kind of value": ("?", f"? Int32 Byte1 {_ROW}"),
        "Update with an unchanged key": ("u", f"Byte1 ? Byte1 {_ROW}"),
        "Update of a key": ("u", f"Byte1 ? Byte1 {_KEY_ROW} Byte1 {_ROW}"),
        "Delete by key": ("d", f"Byte1 Int32 Byte1 {_KEY_ROW}"),
        "Truncate of one relation": ("t", "Byte1 Int32 Int8 Int32"),
    },
    ENGLISH_10: {
        "Begin": ("?", "? ? ? ?"),
        "Commit": ("?", "? ? ? ? ?"),
        "Origin": ("?", "? ? ?"),
        "Relation": ("?", "? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ?"),
        "Type": ("?", "? ? ? ?"),
        "Insert, every kind of value": ("?", f"? ? ? {_ROW}"),
        "Update with an unchanged key": ("?", f"? ? ? {_ROW}"),
        "Update of a key": ("?", f"? ? ? {_KEY_ROW} ? {_ROW}"),
        "Delete by key": ("?", f"? ? ? {_KEY_ROW}"),
        "Truncate of one relation": ("?", "? ? ? ?"),
    },
}

# The bytes by which each document tells tuples and values apart. The older two know no binary
# values; the Korean one has old keys and new rows in lower case, the English none.
PARTS = {FRENCH_14: "KON", KOREAN_12: "kOn", ENGLISH_10: ""}
KINDS = {FRENCH_14: "nutb", KOREAN_12: "nut", ENGLISH_10: "???"}

# Where the wire has it otherwise: (document, message) -> in what. A tag in lower case is
# wrong in each message of the Korean document.
WRONG_IN: dict[tuple[str, str], str] = {
    (FRENCH_14, "Commit"): "no flags, which the wire has",
    (
        FRENCH_14,
        "StreamAbort of the whole, under streaming 'parallel'",
    ): "no LSN and time, which 16 and later add under streaming 'parallel'",
}
_LOWER_CASE = "the tag in lower case, which is another message's or none's"

CASES = [
    pytest.param(document, name, tag, layout, id=f"{document}: {name}")
    for document, messages in DOCUMENTED.items()
    for name, (tag, layout) in messages.items()
]


def _wrong(document: str, name: str, tag: str) -> str | None:
    vector = _BY_NAME[name]
    if tag not in ("?", chr(vector.data[0])):
        return _LOWER_CASE
    return WRONG_IN.get((document, name))


def _fits(vector: Vector, tag: str, layout: str) -> bool:
    documented, wire = layout.split(), vector.layout.split()
    return tag in ("?", chr(vector.data[0])) and (
        len(documented) == len(wire)
        and all(one in ("?", other) for one, other in zip(documented, wire, strict=True))
    )


@pytest.mark.parametrize(("document", "name", "tag", "layout"), CASES)
def test_the_wire_is_as_documented(document: str, name: str, tag: str, layout: str) -> None:
    vector = _BY_NAME[name]
    wrong = _wrong(document, name, tag)
    assert _fits(vector, tag, layout) == (wrong is None), wrong
    if wrong is None:
        assert decode_message(vector.data, **vector.options) == vector.message
        return
    with pytest.raises(ProtocolError):
        decode_message(_as_documented(vector, tag, layout), **vector.options)


def _as_documented(vector: Vector, tag: str, layout: str) -> bytes:
    """The message's bytes without the fields that the document leaves out."""
    fields = list(vector.fields)
    laid_out = []
    for width in layout.split():
        while fields and width not in ("?", fields[0][0]):
            fields.pop(0)
        laid_out.append(fields.pop(0)[2])
    return b"".join([tag.encode(), *laid_out[1:]])


def test_each_known_error_of_the_documents_is_one_of_theirs() -> None:
    for document, name in WRONG_IN:
        assert name in DOCUMENTED[document]
    lower = [name for name, (tag, _) in DOCUMENTED[KOREAN_12].items() if tag.islower()]
    assert len(lower) == 8


def _insert(part: str, kind: str) -> bytes:
    value = b"" if kind in "nu" else bytes(4)
    return b"I" + bytes(4) + part.encode() + b"\0\1" + kind.encode() + value


@pytest.mark.parametrize("document", DOCUMENTED)
def test_tuples_and_values_are_as_documented(document: str) -> None:
    for kind in KINDS[document].replace("?", ""):
        assert decode_message(_insert("N", kind))
    for part in PARTS[document]:
        data = b"U" + bytes(4) + part.encode() + bytes(2) + (b"" if part == "N" else b"N\0\0")
        if part.islower():  # as the Korean document has it
            with pytest.raises(ProtocolError):
                decode_message(data)
        else:
            assert decode_message(data)


def test_what_the_documents_do_not_know_yet() -> None:
    """Each tag of the wire, less those that a document describes."""
    wire = {chr(tag) for tag in MESSAGES}
    described = {
        document: {chr(_BY_NAME[name].data[0]) for name in messages}
        for document, messages in DOCUMENTED.items()
    }
    assert wire - described[FRENCH_14] == set("bPKrp")
    assert wire - described[KOREAN_12] == set("MSEcAbPKrp")
    assert wire - described[ENGLISH_10] == set("MSEcAbPKrp")


def test_all_documents_have_the_origin_without_an_xid() -> None:
    """None of them lists an xid for Origin, and the wire has none inside a stream either."""
    assert {messages["Origin"] for messages in DOCUMENTED.values()} == {
        ("O", "Byte1 Int64 String"),
        ("?", "? ? ?"),
    }
    vector = _BY_NAME["Origin after Stream Start: no LSN, and no xid either"]
    assert vector.layout == "Byte1 Int64 String"
