"""A column's text next to its typed values: what the server prints, in text and binary mode."""

from __future__ import annotations

import pytest
from tests.support.segments import relation, segment

from pgsluice.columnar import decode_segment
from pgsluice.errors import ConversionError
from pgsluice.wire import Delete, Insert, OldKey, TupleData

_DATE, _INT4S, _INT4 = 1082, 1007, 23
_RELATION = relation(("id", _INT4), ("d", _DATE), ("a", _INT4S))


def test_the_requested_columns_have_their_text() -> None:
    messages = [
        _RELATION,
        Insert(_RELATION.oid, TupleData.of("1", "infinity", "{{1},{2}}")),
        Insert(_RELATION.oid, TupleData.of(bytes(3) + b"\2", None, "{}")),
        Delete(_RELATION.oid, OldKey(TupleData.of("1", None, None))),
    ]
    (run,) = decode_segment(segment(messages), texts=("id", "a", "d", "nothing"))
    assert run.new.columns[1].to_pylist() == [None, None]
    assert run.new.texts.keys() == {0, 1, 2}
    assert run.new.texts[0]().to_pylist() == ["1", "2"]
    assert run.new.texts[1]().to_pylist() == ["infinity", None]
    assert run.new.texts[2]().to_pylist() == ["{{1},{2}}", "{}"]
    assert [run.old.texts[place]().to_pylist() for place in range(3)] == [["1"], [None], [None]]

    (run,) = decode_segment(segment(messages), texts={"a"})
    assert run.new.texts.keys() == run.old.texts.keys() == {2}
    (run,) = decode_segment(segment(messages))
    assert not run.new.texts


def test_a_value_whose_text_is_not_known_is_refused_with_its_column() -> None:
    """Binary mode sends a regclass as an OID, and only the server knows its text."""
    named = relation(("id", _INT4), ("r", 2205))
    messages = [named, Insert(named.oid, TupleData.of("1", "pg_class"))]
    (run,) = decode_segment(segment(messages), texts={"r"})
    assert run.new.texts[1]().to_pylist() == ["pg_class"]
    binary = [named, Insert(named.oid, TupleData.of("1", bytes(4)))]
    with pytest.raises(ConversionError, match=r"public\.t, column r: .*regclass"):
        list(decode_segment(segment(binary), texts={"r"}))
