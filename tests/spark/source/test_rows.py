"""Changes as rows: change types, absent columns, changed definitions."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal
from tests.support.spools import (
    DATE,
    INT4,
    INT4_ARRAY,
    INT8,
    NUMERIC,
    START,
    TEXT,
    SpoolMaker,
    relation,
)

from pgsluice.columnar import RelationChanges, decode_segment, variant
from pgsluice.errors import TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spark.source.rows import MAX_ROWS, envelope_batches, table_batches
from pgsluice.spool import FACTS_TAG, SpoolReader
from pgsluice.types import TypeOptions
from pgsluice.wire import (
    UNCHANGED,
    Delete,
    Insert,
    Message,
    OldKey,
    OldRow,
    Relation,
    ReplicaIdentity,
    Truncate,
    TupleData,
    Update,
)

of = TupleData.of
CHANGE_FIELDS = [
    pa.field("_change_type", pa.string()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
    pa.field("_ordinal", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_key", pa.list_(pa.field("element", pa.string()))),
    pa.field("_absent", pa.list_(pa.field("element", pa.string()))),
    pa.field("_unfit", pa.list_(pa.field("element", pa.string()))),
    pa.field("_unfit_text", pa.map_(pa.string(), pa.string())),
]
ENVELOPE = pa.schema(
    [
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("key", variant.TYPE),
        pa.field("row", variant.TYPE),
        pa.field("prefix", pa.string()),
        pa.field("content", pa.binary()),
        *CHANGE_FIELDS,
    ]
)
OID = 5
T = relation(OID, "t", [("id", INT4), ("a", TEXT), ("b", TEXT)])


def decoded(maker: SpoolMaker) -> list[RelationChanges]:
    """All changes in the spool."""
    reader = SpoolReader(maker.path)
    return [
        changes
        for info in reader.segments(Lsn(START))
        for view in reader.views(info)
        for changes in decode_segment(view, None, TypeOptions(), unfit_texts=True)
    ]


def rows(maker: SpoolMaker, **columns: pa.DataType) -> list[dict[str, Any]]:
    """Change rows with the declared columns, the change type and the absent columns."""
    declared = pa.schema([*(pa.field(n, t) for n, t in columns.items()), *CHANGE_FIELDS])
    found: list[dict[str, Any]] = []
    for changes in decoded(maker):
        for batch in table_batches(changes, declared):
            assert batch.schema.equals(declared, check_metadata=True)
            batch.validate(full=True)
            found += batch.to_pylist()
    for row in found:
        for name in ("_commit_version", "_commit_timestamp", "_ordinal", "_xid"):
            assert row.pop(name) is not None
    return found


def envelopes(maker: SpoolMaker) -> list[tuple[Any, ...]]:
    """Envelope rows: (schema, table, key, row, change type, absent)."""
    found = []
    for changes in decoded(maker):
        for batch in envelope_batches(changes, ENVELOPE):
            assert batch.schema.equals(ENVELOPE, check_metadata=True)
            batch.validate(full=True)
            found += [
                (
                    row["schema"],
                    row["table"],
                    _plain(row["key"]),
                    _plain(row["row"]),
                    row["_change_type"],
                    row["_absent"],
                )
                for row in batch.to_pylist()
            ]
    return found


def _plain(value: dict[str, bytes] | None) -> Any:
    return None if value is None else VariantVal(value["value"], value["metadata"]).toPython()


def row(change: str, *values: Any, absent: tuple[str, ...] = ()) -> dict[str, Any]:
    """An expected change row of T."""
    names = ("id", "a", "b")
    return {
        **dict(zip(names, values, strict=True)),
        "_change_type": change,
        "_key": ["id"],
        "_absent": list(absent),
        "_unfit": [],
        "_unfit_text": [],
    }


T_COLUMNS = {"id": pa.int32(), "a": pa.string(), "b": pa.string()}
KEY_2 = OldKey(of("2", None, None))
CASES: list[tuple[str, Message, list[dict[str, Any]]]] = [
    ("insert", Insert(OID, of("1", "x", None)), [row("insert", 1, "x", None)]),
    (
        "an INSERT that a row filter made from an UPDATE",
        Insert(OID, of("1", "x", UNCHANGED)),
        [row("insert", 1, "x", None, absent=("b",))],
    ),
    (
        "an update that changes no key",
        Update(OID, None, of("1", "y", UNCHANGED)),
        [row("update_postimage", 1, "y", None, absent=("b",))],
    ),
    (
        "an update of the key",
        Update(OID, KEY_2, of("3", "y", UNCHANGED)),
        [
            row("update_preimage", 2, None, None, absent=("a", "b")),
            row("update_postimage", 3, "y", None, absent=("b",)),
        ],
    ),
    (
        "an unchanged TOASTed key is taken from the old tuple",
        Update(OID, KEY_2, of(UNCHANGED, "y", "z")),
        [
            row("update_preimage", 2, None, None, absent=("a", "b")),
            row("update_postimage", 2, "y", "z"),
        ],
    ),
    (
        "a whole old row has the values that the new one lacks",
        Update(OID, OldRow(of("1", "x", "big")), of("1", "y", UNCHANGED)),
        [row("update_preimage", 1, "x", "big"), row("update_postimage", 1, "y", "big")],
    ),
    ("a delete by key", Delete(OID, KEY_2), [row("delete", 2, None, None, absent=("a", "b"))]),
    (
        "a delete of a whole row",
        Delete(OID, OldRow(of("2", None, "z"))),
        [row("delete", 2, None, "z")],
    ),
    ("truncate", Truncate((OID,), 0), [row("truncate", None, None, None)]),
]


@pytest.mark.parametrize(
    ("message", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_change_becomes_rows(
    spool_maker: SpoolMaker, message: Message, expected: list[dict[str, Any]]
) -> None:
    spool_maker.segment([T, message])
    assert rows(spool_maker, **T_COLUMNS) == expected


def test_the_changes_of_one_transaction_stay_in_order(spool_maker: SpoolMaker) -> None:
    spool_maker.segment([T, *(message for _, message, _ in CASES)])
    assert rows(spool_maker, **T_COLUMNS) == [expected for case in CASES for expected in case[2]]


def test_change_columns_hold_position_ordinal_and_xid(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(
        [T, Insert(OID, of("1", None, None)), Update(OID, KEY_2, of("3", None, None))],
        [Insert(OID, of("4", None, None))],
    )
    declared = pa.schema([pa.field("id", pa.int32()), *CHANGE_FIELDS])
    batches = [b for c in decoded(spool_maker) for b in table_batches(c, declared)]
    table = pa.Table.from_batches(batches)
    assert table["_ordinal"].to_pylist() == [0, 1, 1, 0]
    assert table["_commit_version"].to_pylist() == [START + 0x100] * 3 + [START + 0x200]
    assert table["_xid"].to_pylist() == [701] * 3 + [702]
    timestamps = [str(value) for value in table["_commit_timestamp"].to_pylist()]
    assert timestamps == ["2000-01-01 00:11:41+00:00"] * 3 + ["2000-01-01 00:11:42+00:00"]


def test_many_rows_make_several_batches(spool_maker: SpoolMaker) -> None:
    narrow = relation(OID, "t", [("id", INT4)])
    spool_maker.segment([narrow, *(Insert(OID, of(str(n))) for n in range(MAX_ROWS + 1))])
    result = rows(spool_maker, id=pa.int32())
    assert [r["id"] for r in result] == list(range(MAX_ROWS + 1))


def test_columns_are_matched_by_name(spool_maker: SpoolMaker) -> None:
    """Before it was added and after it was dropped, a column is NULL."""
    narrow = relation(OID, "t", [("id", INT4), ("gone", TEXT)])
    wide = relation(OID, "t", [("added", TEXT), ("id", INT4), ("other", INT4)])
    spool_maker.segment([narrow, Insert(OID, of("1", "x")), wide, Insert(OID, of("y", "2", "7"))])
    result = rows(spool_maker, id=pa.int32(), gone=pa.string(), added=pa.string())
    assert [(r["id"], r["gone"], r["added"]) for r in result] == [
        (1, "x", None),
        (2, None, "y"),
    ]
    assert [r["_absent"] for r in result] == [[], []]


@pytest.mark.parametrize(
    ("column", "text", "declared", "value"),
    [
        ((INT4,), "7", pa.int64(), 7),
        ((NUMERIC, (5 << 16 | 2) + 4), "1.25", pa.decimal128(9, 3), "1.250"),
    ],
)
def test_values_are_cast_to_a_wider_declared_type(
    spool_maker: SpoolMaker, column: tuple[Any, ...], text: str, declared: pa.DataType, value: Any
) -> None:
    spool_maker.segment([relation(OID, "t", [("id", *column)]), Insert(OID, of(text))])
    (result,) = rows(spool_maker, id=declared)
    assert str(result["id"]) == str(value)


@pytest.mark.parametrize("declared", [pa.int32(), pa.string(), pa.float64()])
def test_a_type_that_changes_under_a_running_query_is_an_error(
    spool_maker: SpoolMaker, declared: pa.DataType
) -> None:
    spool_maker.segment([relation(OID, "t", [("id", INT8)]), Insert(OID, of("1"))])
    with pytest.raises(TableError, match=r'public.t: column "id" is now int64'):
        rows(spool_maker, id=declared)


UNFIT = relation(OID, "t", [("id", INT4), ("d", DATE), ("tags", INT4_ARRAY), ("note", TEXT)])


def test_a_value_that_does_not_fit_its_type_comes_as_text(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(
        [
            UNFIT,
            Insert(OID, of("1", "infinity", "{{1,2},{3,4}}", "a")),
            Insert(OID, of("2", "2026-01-02", "{1,2}", "b")),
            Update(
                OID, OldRow(of("2", "2026-01-02", "{{5}}", "b")), of("2", None, "{1}", UNCHANGED)
            ),
        ]
    )
    columns = {"id": pa.int32(), "d": pa.date32(), "tags": pa.list_(pa.int32())}
    shown = [
        (r["id"], r["d"], r["tags"], r["_unfit"], dict(r["_unfit_text"]))
        for r in rows(spool_maker, **columns, note=pa.string())
    ]
    second = date(2026, 1, 2)
    assert shown == [
        (1, None, None, ["d", "tags"], {"d": "infinity", "tags": "{{1,2},{3,4}}"}),
        (2, second, [1, 2], [], {}),
        (2, second, None, ["tags"], {"tags": "{{5}}"}),
        (2, None, [1], [], {}),
    ]
    (first, *_) = envelopes(spool_maker)
    assert first[3] == {"id": 1, "d": None, "tags": None, "note": "a"}


def test_the_text_of_an_unfit_value_is_of_a_declared_column_only(spool_maker: SpoolMaker) -> None:
    spool_maker.segment([UNFIT, Insert(OID, of("1", "infinity", "{1}", "a"))])
    (only,) = rows(spool_maker, id=pa.int32())
    assert (only["_unfit"], only["_unfit_text"]) == ([], [])


def test_envelope_rows(spool_maker: SpoolMaker) -> None:
    spool_maker.segment(
        [
            T,
            Insert(OID, of("1", "x", None)),
            Update(OID, KEY_2, of("3", "y", UNCHANGED)),
            Delete(OID, KEY_2),
            Truncate((OID,), 0),
        ]
    )
    t = ("public", "t")
    assert envelopes(spool_maker) == [
        (*t, {"id": 1}, {"id": 1, "a": "x", "b": None}, "insert", []),
        (*t, {"id": 2}, {"id": 2}, "update_preimage", ["a", "b"]),
        (*t, {"id": 3}, {"id": 3, "a": "y"}, "update_postimage", ["b"]),
        (*t, {"id": 2}, {"id": 2}, "delete", ["a", "b"]),
        (*t, None, None, "truncate", []),
    ]


def facts_message(of_relation: Relation, **changes: Any) -> bytes:
    """The spool's own message with a relation's facts."""
    facts = {
        "kind": "r",
        "root_oid": of_relation.oid,
        "root_namespace": of_relation.namespace,
        "root_name": of_relation.name,
        "primary_key": ("id",),
        "identity_key": ("id",),
        **changes,
    }
    columns = tuple(
        ColumnFacts(c.name, number, c.type_oid, c.typmod)
        for number, c in enumerate(of_relation.columns, 1)
    )
    made = RelationFacts(
        of_relation.oid, of_relation.namespace, of_relation.name, replica_identity="d",
        filenode=1, columns=columns, **facts,
    )  # fmt: skip
    return bytes([FACTS_TAG]) + of_relation.oid.to_bytes(4, "big") + made.to_json().encode()


class Raw:
    """Stands for a message with the given bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def encode(self) -> bytes:
        return self._data


def test_under_replica_identity_full_the_key_is_the_primary_key(spool_maker: SpoolMaker) -> None:
    full = relation(
        OID, "t", [("id", INT4), ("a", TEXT)], key=("id", "a"), identity=ReplicaIdentity.FULL
    )
    insert = Insert(OID, of("1", "x"))
    spool_maker.segment([full, insert])
    assert envelopes(spool_maker)[0][2] is None, "without facts the primary key is unknown"
    spool_maker.segment([full, Raw(facts_message(full)), insert])
    assert envelopes(spool_maker)[-1][2] == {"id": 1}


def test_rows_of_a_leaf_have_its_roots_name(spool_maker: SpoolMaker) -> None:
    leaf = relation(7, "orders_2026", [("id", INT4)])
    facts = facts_message(leaf, root_oid=6, root_namespace="shop", root_name="orders")
    spool_maker.segment([leaf, Raw(facts), Insert(7, of("1"))])
    assert [envelope[:2] for envelope in envelopes(spool_maker)] == [("shop", "orders")]
