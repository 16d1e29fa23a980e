"""Malformed messages raise a ProtocolError that names their place; they never give wrong data."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.segments import OID, relation, segment

from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.errors import ConversionError, ProtocolError
from pgsluice.spool.segments.block import RelationInForce
from pgsluice.wire import (
    UNCHANGED,
    Delete,
    Insert,
    Message,
    OldKey,
    OldRow,
    Truncate,
    TupleData,
    Update,
    decode_message,
)

INT4, TEXT = 23, 25
PLAIN = relation(("id", INT4), ("note", TEXT))
IN_FORCE = {OID: RelationInForce(PLAIN.encode(), None)}
HEAD = struct.pack(">I", OID)
ONE = b"t\0\0\0\x01" + b"1"
GOOD = Insert(OID, TupleData.of("1", "a")).encode()

MALFORMED = {
    "nothing after the OID": b"I" + HEAD,
    "an insert with an old tuple": b"I" + HEAD + b"K\0\x02" + ONE + ONE,
    "an update with an unknown tuple": b"U" + HEAD + b"X\0\x02" + ONE + ONE,
    "a delete with a new tuple": b"D" + HEAD + b"N\0\x02" + ONE + ONE,
    "no column count": b"I" + HEAD + b"N",
    "half a column count": b"I" + HEAD + b"N\0",
    "fewer columns": b"I" + HEAD + b"N\0\x01" + ONE,
    "more columns": b"I" + HEAD + b"N\0\x03" + ONE + ONE + ONE,
    "a negative column count": b"I" + HEAD + b"N\xff\xff" + ONE + ONE,
    "no value": b"I" + HEAD + b"N\0\x02" + ONE,
    "an unknown kind": b"I" + HEAD + b"N\0\x02" + ONE + b"x",
    "a cut length": b"I" + HEAD + b"N\0\x02" + ONE + b"t\0\0",
    "a cut length of a binary value": b"I" + HEAD + b"N\0\x02" + ONE + b"b\0\0",
    "a negative length": b"I" + HEAD + b"N\0\x02" + ONE + b"t\xff\xff\xff\xff",
    "a length past the end": b"I" + HEAD + b"N\0\x02" + ONE + b"t\0\0\0\x02a",
    "a huge length": b"I" + HEAD + b"N\0\x02" + ONE + b"t\x7f\xff\xff\xffa",
    "bytes after the new tuple": b"I" + HEAD + b"N\0\x02" + ONE + ONE + b"n",
    "bytes after the old tuple": b"D" + HEAD + b"K\0\x02" + ONE + b"nn",
    "an update that ends after its old tuple": b"U" + HEAD + b"K\0\x02" + ONE + b"n",
    "an update with two old tuples": b"U" + HEAD + b"K\0\x02" + ONE + b"nK\0\x02" + ONE + b"n",
    "a truncate without its relations": b"T\0\0\0\x02\0" + HEAD,
    "facts that are no JSON": b"#" + HEAD + b"{",
    "facts that are not UTF-8": b"#" + HEAD + b"\xff",
    "a truncated Relation message": PLAIN.encode()[:-3],
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("is_last", [True, False])
def test_an_error_names_the_place_of_a_malformed_message(case: str, is_last: bool) -> None:
    bad = MALFORMED[case]
    view = segment([GOOD, bad] if is_last else [GOOD, bad, GOOD, GOOD], IN_FORCE)
    with pytest.raises(ProtocolError) as caught:
        list(decode_segment(view))
    facts = caught.value.facts
    assert facts["tag"] == chr(bad[0])
    assert facts["lsn"] == 1001
    assert facts["segment"] == "segment-1"
    assert 0 < facts["offset"] <= len(bad)


def test_a_change_of_a_relation_that_was_not_announced_is_refused() -> None:
    with pytest.raises(ProtocolError, match=f"relation {OID}, which no Relation message"):
        list(decode_segment(segment([GOOD])))
    with pytest.raises(ProtocolError, match="which no Relation message"):
        list(decode_segment(segment([Truncate((OID,), 0)])))


def test_a_relation_in_force_that_is_no_relation_message_is_refused() -> None:
    in_force = {OID: RelationInForce(GOOD, None)}
    with pytest.raises(ProtocolError, match="not described by a Relation message"):
        list(decode_segment(segment([GOOD], in_force)))


TEXTUAL = relation(("id", TEXT), ("note", TEXT))
values = st.none() | st.just(UNCHANGED) | st.sampled_from(["1", "", "a b"]) | st.just(b"binary")
tuples = st.tuples(values, values).map(lambda pair: TupleData.of(*pair))
olds = tuples.map(OldKey) | tuples.map(OldRow)
sent_changes = st.one_of(
    st.builds(Insert, st.just(OID), tuples),
    st.builds(Update, st.just(OID), st.none() | olds, tuples),
    st.builds(Delete, st.just(OID), olds),
)


@settings(max_examples=examples(200))
@given(sent=st.lists(sent_changes, min_size=1, max_size=4), data=st.data())
def test_damaged_messages_decode_or_fail_as_in_wire(
    sent: list[Message], data: st.DataObject
) -> None:
    """The oracle is wire, which decodes one message at a time."""
    raw = [message.encode() for message in sent]
    if data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(raw) - 1))
        place = data.draw(st.integers(5, len(raw[index]) - 1))
        replacement = data.draw(st.binary(max_size=2))
        raw[index] = raw[index][:place] + replacement + raw[index][place + 1 :]
    in_force = {OID: RelationInForce(TEXTUAL.encode(), None)}
    view = segment(raw, in_force, gap=data.draw(st.binary(max_size=3)))
    try:
        expected = [row for message in raw for row in rows_of(decode_message(message))]
    except (ProtocolError, UnicodeDecodeError):
        with pytest.raises((ProtocolError, ConversionError)):
            list(decode_segment(view))
    else:
        (decoded,) = decode_segment(view)
        assert sorted(decoded_rows(decoded), key=repr) == sorted(expected, key=repr)


Row = list[object]


def rows_of(message: Message) -> list[Row]:
    """A change's tuples: values as text, UNCHANGED where the message has no value.

    Raises:
        ProtocolError: a tuple does not have the relation's columns.
        UnicodeDecodeError: a value is no text.
    """
    match message:
        case Insert(new=new):
            parts = [new]
        case Update(old=None, new=new):
            parts = [new]
        case Update(old=OldKey(data=old), new=new):
            parts = [key_of(old), new]
        case Update(old=OldRow(data=old), new=new):
            parts = [old, new]
        case Delete(old=OldKey(data=old)):
            parts = [key_of(old)]
        case Delete(old=OldRow(data=old)):
            parts = [old]
        case _:
            raise AssertionError(message)
    if any(len(part) != len(TEXTUAL.columns) for part in parts):
        raise ProtocolError("columns")
    return [
        [
            UNCHANGED if part.is_unchanged(column) else value if value is None else value.decode()
            for column, value in enumerate(part.values)
        ]
        for part in (TupleData(part.kinds, part.values) for part in parts)
    ]


def key_of(old: TupleData) -> TupleData:
    """A key tuple with no values but its key column's."""
    return TupleData(old.kinds[:1] + b"u" * (len(old) - 1), (*old.values[:1], None))


def decoded_rows(changes: RelationChanges) -> list[Row]:
    return [
        [
            UNCHANGED
            if column in part.absent and part.absent[column][number]
            else array[number].as_py()
            for column, array in enumerate(part.columns)
        ]
        for part in (changes.old, changes.new)
        for number in range(len(part.columns[0]))
    ]
