"""Decoding a segment's messages to typed changes."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from tests.support.segments import OID, facts, facts_message, relation, segment

from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.columnar.changes import KEY_ONLY, WHOLE_ROW
from pgsluice.errors import ConversionError
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import RelationInForce, SegmentView
from pgsluice.types import TypeOptions
from pgsluice.wire import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    OldKey,
    OldRow,
    Truncate,
    TupleData,
    Type,
    Update,
)

INT4, TEXT, NUMERIC, DATE, TIMESTAMPTZ = 23, 25, 1700, 1082, 1184
MONEY = ((10 << 16) | 2) + 4

PLAIN = relation(("id", INT4), ("note", TEXT))


def row(*values: str | bytes | None) -> TupleData:
    return TupleData.of(*values)


def only(view: SegmentView, **options: object) -> RelationChanges:
    """The only run of a view."""
    (changes,) = decode_segment(view, **options)  # type: ignore[arg-type]
    return changes


def new_rows(changes: RelationChanges) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in changes.new.columns), strict=True))


def old_rows(changes: RelationChanges) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in changes.old.columns), strict=True))


def test_inserts_are_typed() -> None:
    wide = relation(
        ("id", INT4), ("price", NUMERIC, MONEY), ("day", DATE), ("at", TIMESTAMPTZ), ("note", TEXT)
    )
    changes = only(
        segment(
            [
                wide,
                Insert(OID, row("1", "9.99", "2024-02-29", "2024-02-29 12:00:00+00", "ünïcödé")),
                Insert(OID, row("-2", None, None, None, "")),
            ]
        )
    )
    assert changes.schema == pa.schema(
        {
            "id": pa.int32(),
            "price": pa.decimal128(10, 2),
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "note": pa.string(),
        }
    )
    noon = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    assert new_rows(changes) == [
        (1, Decimal("9.99"), dt.date(2024, 2, 29), noon, "ünïcödé"),
        (-2, None, None, None, ""),
    ]
    assert len(changes) == 2
    assert (changes.new.absent, changes.new.unfit) == ({}, {})


def test_changes_of_every_kind_come_in_commit_order() -> None:
    changes = only(
        segment(
            [
                Begin(Lsn(1), 0, 7),
                PLAIN,
                Insert(OID, row("1", "a")),
                Update(OID, None, row("1", "b")),
                Update(OID, OldKey(row("1", None)), row("2", "c")),
                Truncate((OID,), 0),
                Update(OID, OldRow(row("2", "c")), row("3", "d")),
                Delete(OID, OldKey(row("3", None))),
                Delete(OID, OldRow(row("4", "z"))),
                Commit(0, Lsn(1), Lsn(2), 0),
            ]
        )
    )
    assert bytes(changes.actions) == b"IUUTUDD"
    assert changes.positions.tolist() == [1002, 1003, 1004, 1005, 1006, 1007, 1008]
    assert changes.commit_timestamps.tolist() == [2002 + i for i in range(7)]
    assert changes.xids.tolist() == [3002 + i for i in range(7)]
    assert changes.ordinals.tolist() == [2 + i for i in range(7)]
    assert new_rows(changes) == [(1, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert changes.new_index.tolist() == [0, 1, 2, -1, 3, -1, -1]
    assert old_rows(changes) == [(1, None), (2, "c"), (3, None), (4, "z")]
    assert changes.old_index.tolist() == [-1, -1, 0, -1, 1, 2, 3]
    assert changes.old_kinds.tolist() == [0, 0, KEY_ONLY, 0, WHOLE_ROW, KEY_ONLY, WHOLE_ROW]
    assert {c: m.tolist() for c, m in changes.old.absent.items()} == {1: [True, False, True, False]}


def test_unchanged_toast_is_absent_and_null_is_not() -> None:
    changes = only(
        segment(
            [
                PLAIN,
                Update(OID, None, row("1", UNCHANGED)),
                Update(OID, None, row("2", None)),
                Insert(OID, row("3", UNCHANGED)),
                Insert(OID, row("4", "d")),
            ]
        )
    )
    assert new_rows(changes) == [(1, None), (2, None), (3, None), (4, "d")]
    assert {c: m.tolist() for c, m in changes.new.absent.items()} == {1: [True, False, True, False]}


def test_values_of_a_key_tuple_outside_of_the_key_are_ignored() -> None:
    changes = only(segment([PLAIN, Delete(OID, OldKey(row("1", "not to be read")))]))
    assert old_rows(changes) == [(1, None)]
    assert changes.old.absent[1].tolist() == [True]


def test_a_column_may_mix_text_and_binary_values() -> None:
    first_id = (1).to_bytes(4, "big")
    changes = only(
        segment(
            [
                PLAIN,
                Insert(OID, row(first_id, b"binary")),
                Insert(OID, row("2", "text")),
                Insert(OID, row(None, UNCHANGED)),
                Insert(OID, row(first_id, "mixed")),
            ]
        )
    )
    assert new_rows(changes) == [(1, "binary"), (2, "text"), (None, None), (1, "mixed")]
    assert only(segment([PLAIN, Insert(OID, row(first_id, b"b"))])).new.columns[0].to_pylist() == [
        1
    ]


def test_a_value_that_the_arrow_type_cannot_hold_is_null_and_unfit() -> None:
    dated = relation(("id", INT4), ("day", DATE), ("days", 1182))
    changes = only(
        segment(
            [
                dated,
                Insert(OID, row("1", "infinity", "{2024-01-01}")),
                Insert(OID, row("2", (2**31 - 1).to_bytes(4, "big"), "{{2024-01-01}}")),
                Insert(OID, row("3", None, None)),
            ]
        )
    )
    assert changes.new.columns[1].to_pylist() == [None, None, None]
    unfit = {c: m.tolist() for c, m in changes.new.unfit.items()}
    assert unfit == {1: [True, True, False], 2: [False, True, False]}


def test_interleaved_changes_of_a_relation_are_one_run() -> None:
    other = relation(("id", INT4), oid=2, name="other")
    view = segment(
        [
            PLAIN,
            Insert(OID, row("1", "a")),
            other,
            Insert(2, row("7")),
            PLAIN,
            Insert(OID, row("2", "b")),
            other,
            Insert(2, row("8")),
            Truncate((2, OID, 2), 0),
        ]
    )
    first, second = decode_segment(view)
    assert (first.relation, second.relation) == (PLAIN, other)
    assert new_rows(first) == [(1, "a"), (2, "b")]
    assert new_rows(second) == [(7,), (8,)]
    assert bytes(first.actions) == bytes(second.actions) == b"IIT"
    assert [run.relation.oid for run in decode_segment(view, {2})] == [2]
    assert [run.relation.oid for run in decode_segment(view, {3})] == []
    assert list(decode_segment(segment([]))) == []


def test_a_changed_definition_begins_a_new_run() -> None:
    longer = relation(("id", INT4), ("note", TEXT), ("more", INT4))
    known_facts = facts()
    view = segment(
        [
            PLAIN,
            facts_message(OID, known_facts),
            Insert(OID, row("1", "a")),
            PLAIN,
            facts_message(OID, known_facts),
            Insert(OID, row("2", "b")),
            Truncate((OID,), 0),
            longer,
            Insert(OID, row("3", "c", "4")),
            facts_message(OID, facts(filenode=2)),
            Insert(OID, row("5", "d", "6")),
            facts_message(OID, None),
            Delete(OID, OldKey(row("1", None, None))),
        ]
    )
    runs = list(decode_segment(view))
    assert [(run.relation, run.facts) for run in runs] == [
        (PLAIN, known_facts),
        (longer, known_facts),
        (longer, facts(filenode=2)),
        (longer, None),
    ]
    assert [bytes(run.actions) for run in runs] == [b"IIT", b"I", b"I", b"D"]
    assert [new_rows(run) for run in runs] == [
        [(1, "a"), (2, "b")],
        [(3, "c", 4)],
        [(5, "d", 6)],
        [],
    ]
    assert runs[3].new.columns[2].type == pa.int32()


def test_a_relation_may_be_in_force_before_the_segment() -> None:
    in_force = {OID: RelationInForce(PLAIN.encode(), facts())}
    changes = only(segment([Truncate((OID,), 0), PLAIN, Insert(OID, row("1", "a"))], in_force))
    assert changes.relation == PLAIN
    assert changes.facts == facts()
    assert bytes(changes.actions) == b"TI"


def test_messages_of_a_stream_with_gaps_between_them_are_decoded() -> None:
    view = segment(
        [
            replace(PLAIN, xid=77),
            facts_message(OID, facts(), xid=77),
            Type(20000, "public", "mood", xid=77),
            Insert(OID, row("1", "a"), xid=77),
            Update(OID, OldKey(row("1", None)), row("2", "b"), xid=78),
            LogicalMessage(1, Lsn(5), "p", b"x", xid=77),
            Truncate((OID,), 0, xid=77),
            Delete(OID, OldRow(row("2", "b")), xid=77),
        ],
        in_stream=True,
        gap=b"bytes of frames",
    )
    changes = only(view)
    assert changes.relation == PLAIN
    assert changes.facts == facts()
    assert bytes(changes.actions) == b"IUTD"
    assert new_rows(changes) == [(1, "a"), (2, "b")]
    assert old_rows(changes) == [(1, None), (2, "b")]


def test_options_hold_for_all_columns_and_overrides_for_one() -> None:
    priced = relation(("id", INT4), ("free", NUMERIC), ("fixed", NUMERIC, MONEY))
    view = segment([priced, Insert(OID, row("1", "1.5", "2.50"))])
    wider = TypeOptions("decimal(20,4)", for_column=True)
    plain = only(view)
    double = only(view, options=TypeOptions("double"))
    changes = only(view, overrides={"fixed": wider})

    assert [str(t) for t in plain.schema.types] == ["int32", "string", "decimal128(10, 2)"]
    assert [str(t) for t in double.schema.types] == ["int32", "double", "decimal128(10, 2)"]
    assert [str(t) for t in changes.schema.types] == ["int32", "string", "decimal128(20, 4)"]
    assert new_rows(changes) == [(1, "1.5", Decimal("2.5000"))]
    assert all(field.nullable for field in changes.schema)


def test_decoded_arrays_do_not_keep_the_segment_in_memory() -> None:
    view = segment([PLAIN, *(Insert(OID, row(str(i), "x" * 50)) for i in range(100))])
    changes = only(view)
    start = view.block.data.ctypes.data
    for column in changes.new.columns:
        for buffer in column.buffers():
            inside = buffer is not None and start <= buffer.address < start + len(view.block.data)
            assert not inside


def test_an_error_of_a_value_names_table_column_and_position() -> None:
    view = segment([PLAIN, Insert(OID, row("1", "a")), Insert(OID, row("s3cret", "b"))])
    with pytest.raises(ConversionError, match=r"public\.t, column id") as caught:
        list(decode_segment(view))
    facts_told = caught.value.facts
    assert facts_told["table"] == "public.t"
    assert facts_told["column"] == "id"
    assert facts_told["lsn"] == 1002
    assert facts_told["segment"] == "segment-1"
    assert "s3cret" not in str(caught.value)


def test_a_table_without_columns_is_decoded() -> None:
    bare = relation()
    changes = only(segment([bare, Insert(OID, row()), Insert(OID, row())]))
    assert len(changes) == 2
    assert changes.new.columns == ()
    assert changes.new_index.tolist() == [0, 1]
    assert np.array_equal(changes.old_index, [-1, -1])
