"""What one task does where the changes' columns are not the target's; on a real spool and table."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.subscription.applying import FactsMessage, apply_tables
from tests.support.spools import INT4, NUMERIC, OID, START, TEXT, SpoolMaker, configured, relation

from pgsluice.errors import Failure, Remedy
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import AddedColumn, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import AddedColumns, Pending, SpoolReader, TableState, find_record
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.planning import plan_alterations
from pgsluice.wire import Insert, Message, TupleData

ID, NOTE, C = ("id", INT4, -1), ("note", TEXT, -1), ("c", INT4, -1)
SMALL, LARGE = ("n", NUMERIC, (6 << 16 | 2) + 4), ("n", NUMERIC, (10 << 16 | 2) + 4)
KNOWN = KnownColumns({"id": (INT4, -1), "note": (TEXT, -1), "c": (INT4, -1)}, {"c": "7"}, ("id",))
Column = tuple[str, int, int]


def facts_of(*columns: Column, key: tuple[str, ...] = ("id",)) -> RelationFacts:
    known = tuple(ColumnFacts(name, i + 1, *kind) for i, (name, *kind) in enumerate(columns))
    return RelationFacts(
        OID, "public", "orders", "r", OID, "public", "orders", key, key, "d", 1, known
    )


def announced(
    *columns: Column, key: tuple[str, ...] = ("id",), root_oid: int = OID
) -> list[Message]:
    """An R and its facts."""
    facts: Any = FactsMessage(replace(facts_of(*columns, key=key), root_oid=root_oid))
    return [relation(OID, "orders", columns, key=key), facts]


def insert(*values: str | None) -> Message:
    return Insert(OID, TupleData.of(*values))


def writer(maker: SpoolMaker, lake: Path, schema: pa.Schema | None = None) -> TableWriter:
    identity = TargetIdentity(maker.spool.identity.spool_id, OID, 1)
    table = TargetTable("public", "orders", schema or pa.schema([]), ("id",))
    return TableWriter(make_sink(apply_tables(maker, lake).sink), table, identity)


def copied(maker: SpoolMaker, lake: Path, last: pa.Field, value: Any) -> None:
    """The target holds a copy of one row, at the spool's beginning."""
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), last])
    rows = pa.RecordBatch.from_pydict({"id": [0], last.name: [value]}, schema=schema)
    writer(maker, lake, schema).load([rows], Lsn(START))


def run(
    maker: SpoolMaker, lake: Path, through: Lsn, known: KnownColumns | None, **more: Any
) -> TaskResult | Failure:
    at = Lsn(START)
    work = TableWork(OID, "public", "orders", at, through, at, 1, (OID,), known=known)
    return attempt(apply_tables(maker, lake).run, replace(work, **more))


def rows(lake: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(lake)).to_pyarrow_table().to_pylist()
    return sorted(table, key=lambda row: int(row["id"]))


def values(lake: Path) -> dict[int, Any]:
    return {row["id"]: row.get("c", "none") for row in rows(lake)}


SEVEN = AddedColumn(pa.field("c", pa.int32()), pa.scalar(7, pa.int32()))


@pytest.mark.parametrize("crashed", ["", "after the first piece", "after the column"])
def test_rows_from_before_a_column_get_its_value_and_later_ones_do_not(
    maker: SpoolMaker, lake: Path, crashed: str
) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    first = maker.segment([*announced(ID, NOTE), insert("1", "before")])
    maker.segment(
        [insert("2", "same"), *announced(ID, NOTE, C), insert("3", "same", None)],
        [insert("4", "after", "8")],
    )
    end = maker.segment([*announced(ID, NOTE), insert("5", "dropped")])
    if crashed:
        assert run(maker, lake, first, KNOWN).changes == 1
        assert values(lake) == {0: "none", 1: "none"}
    if crashed == "after the column":
        assert not writer(maker, lake).alter([SEVEN], ()).skipped
    result = run(maker, lake, end, KNOWN)
    assert result.committed == end
    assert result.changes == (4 if crashed else 5)
    assert values(lake) == {0: 7, 1: 7, 2: 7, 3: None, 4: 8, 5: None}
    assert run(maker, lake, end, KNOWN).skipped


def test_two_columns_that_come_one_after_the_other(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    d = ("d", TEXT, -1)
    maker.segment([*announced(ID, NOTE, C), insert("1", "", "1")])
    end = maker.segment([*announced(ID, NOTE, C, d), insert("2", "", "2", "y")])
    known = replace(KNOWN, types={**KNOWN.types, "d": (TEXT, -1)}, added={"c": "7", "d": "x"})
    assert run(maker, lake, end, known).changes == 2
    assert [(row["c"], row["d"]) for row in rows(lake)] == [(7, "x"), (1, "x"), (2, "y")]


def test_a_column_that_no_look_has_found_waits_for_one(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    end = maker.segment([*announced(ID, NOTE, C), insert("1", "", "1")])
    known = replace(KNOWN, types={"id": (INT4, -1), "note": (TEXT, -1)}, added={})
    result = run(maker, lake, end, known)
    assert result.remedy is Remedy.LOOK
    assert "'c' of table public.orders arrived before a catalog refresh" in result.message
    assert values(lake) == {0: "none"}
    # The catalog had not found its facts before it was dropped.
    known = replace(known, names={1: "id", 2: "note"}, attnums=3, settled=2)
    result = run(maker, lake, end, known, looked_at=end)
    assert "does not prove" in result.doubt
    assert values(lake) == {0: "none", 1: "none"}


def test_columns_that_no_change_has_brought(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    facts = facts_of(ID, NOTE, C).to_json()
    for skipped in (False, True):
        result = run(maker, lake, Lsn(START), KNOWN, alter_facts=facts, oids=())
        assert (result.is_altered, result.skipped) == (True, skipped)
        assert values(lake) == {0: 7}
        assert writer(maker, lake).position() == START
    end = maker.segment([*announced(ID, NOTE), insert("1", "dropped again")])
    assert run(maker, lake, end, KNOWN).changes == 1
    assert values(lake) == {0: 7, 1: None}


def test_a_dropped_column_whose_type_is_gone(maker: SpoolMaker, lake: Path) -> None:
    """DROP DOMAIN CASCADE: the facts, looked up later, have neither the column nor its type."""
    copied(maker, lake, pa.field("c", pa.int32()), 7)
    domain = 90001
    facts: Any = FactsMessage(facts_of(ID))
    first = relation(OID, "orders", (ID, ("c", domain, -1)), key=("id",))
    maker.segment([first, facts, insert("1", "8")])
    end = maker.segment([*announced(ID), insert("2")])
    result = run(maker, lake, end, KNOWN)
    assert not isinstance(result, Failure)
    assert values(lake) == {0: 7, 1: None, 2: None}


def test_a_column_that_grew_before_a_look_and_was_dropped_after_it(
    maker: SpoolMaker, lake: Path
) -> None:
    """The look saw the larger type, and capture read the facts after the DROP."""
    copied(maker, lake, pa.field("c", pa.decimal128(8, 2)), Decimal(7))
    larger = ("c", 1700, (10 << 16 | 2) + 4)  # numeric(10,2)
    known = replace(KNOWN, types={**KNOWN.types, "c": larger[1:]})
    facts: Any = FactsMessage(facts_of(ID))
    first = relation(OID, "orders", (ID, larger), key=("id",))
    end = maker.segment([first, facts, insert("1", "8.00")])
    result = run(maker, lake, end, known)
    assert not isinstance(result, Failure), result.message
    assert values(lake) == {0: 7, 1: None}


def test_changes_under_another_name_wait_for_a_look(maker: SpoolMaker, lake: Path) -> None:
    """The target has the rows of the table of its name, up to the rename and no further."""
    copied(maker, lake, pa.field("c", pa.int32()), 7)
    first = maker.segment([*announced(ID, C), insert("1", "8")])
    renamed = relation(OID, "orders_old", (ID, C), key=("id",))
    end = maker.segment([insert("2", "9"), renamed, insert("3", "10")], [insert("4", "11")])
    result = run(maker, lake, end, KNOWN)
    assert (result.remedy, result.message) == (
        Remedy.LOOK,
        "table public.orders is now called public.orders_old",
    )
    assert values(lake) == {0: 7, 1: 8}
    # Renamed there and back: a look after the changes has found the old name.
    assert run(maker, lake, end, KNOWN, looked_through=first).remedy is Remedy.LOOK
    assert isinstance(run(maker, lake, end, KNOWN, looked_through=end), TaskResult)
    assert values(lake) == {0: 7, 1: 8, 2: 9, 3: 10, 4: 11}


def test_a_wider_type(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, pa.field("n", pa.decimal128(6, 2)), Decimal("1.50"))
    maker.segment([*announced(ID, SMALL), insert("1", "2.25")])
    end = maker.segment([*announced(ID, LARGE), insert("2", "12345678.75")])
    known = KnownColumns({"id": (INT4, -1), "n": LARGE[1:]}, {}, ("id",))
    before = replace(known, types={**known.types, "n": SMALL[1:]})
    assert run(maker, lake, end, before).remedy is Remedy.LOOK
    assert run(maker, lake, end, known).changes == 2
    assert [str(row["n"]) for row in rows(lake)] == ["1.50", "2.25", "12345678.75"]


def test_rows_of_leaves_are_appended_where_their_key_is_not_the_tables(
    maker: SpoolMaker, lake: Path
) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    end = maker.segment(
        [*announced(ID, NOTE, root_oid=OID + 1), insert("0", "of another leaf"), insert("0", "x")]
    )
    result = run(maker, lake, end, replace(KNOWN, key=()))
    assert result.changes == 2
    assert [row["id"] for row in rows(lake)] == [0, 0, 0]


def test_another_key_waits_for_a_look(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    end = maker.segment([*announced(ID, NOTE, key=("note",)), insert("1", "x")])
    result = run(maker, lake, end, KNOWN)
    assert (result.remedy, result.message) == (
        Remedy.LOOK,
        "the key of table public.orders changed from (id) to (note)",
    )
    assert rows(lake) == [{"id": 0, "note": "copied"}]


def test_a_relation_of_which_the_catalog_says_nothing_any_more(
    maker: SpoolMaker, lake: Path
) -> None:
    """Of a partition, the table waits for a look, which finds that it was dropped."""
    copied(maker, lake, pa.field("note", pa.string()), "copied")
    end = maker.segment([relation(OID, "orders", [ID, NOTE], key=("id",)), insert("1", "x")])
    parked = run(maker, lake, end, KNOWN)
    assert (parked.remedy, parked.partitions) == (Remedy.PARK, set())
    leaf = OID + 1
    row = Insert(leaf, TupleData.of("2", "y"))
    end = maker.segment([relation(leaf, "orders_1", [ID, NOTE], key=("id",)), row])
    waits = run(maker, lake, end, KNOWN, oids=(leaf,))
    assert (waits.remedy, waits.partitions) == (Remedy.LOOK, {leaf})
    assert rows(lake) == [{"id": 0, "note": "copied"}]


def test_columns_are_due_when_all_from_before_the_look_is_applied(maker: SpoolMaker) -> None:
    configured(maker)
    end = maker.segment([*announced(ID, NOTE), insert("1", "x")])
    reader, record = SpoolReader(maker.path), find_record(maker.path, "q")
    table = replace(record.tables[OID], state=TableState.READY)

    def is_due(alter_after: int, **more: Any) -> bool:
        due = more.pop("due", None)
        pending = Pending(due=due, columns=AddedColumns(Lsn(alter_after), "{}"))
        known = replace(table, **{"applied_through": end, "pending": pending, **more})
        return bool(plan_alterations(reader, replace(record, position=end, tables={OID: known})))

    assert is_due(end)
    assert not is_due(end + 1)
    assert not is_due(end, applied_through=Lsn(START))  # its changes wait
    assert not is_due(end, due=0.0)
    assert not is_due(end, state=TableState.PARKED)
    maker.writer.advance_frontier(Lsn(end + 0x100))
    assert is_due(end + 0x100)
    assert not is_due(end + 0x101)
    maker.segment([insert("2", "x")])
    assert not is_due(end + 0x100)  # what the spool has after the position is not applied
