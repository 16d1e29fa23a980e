"""Net changes: what a batch leaves of each key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.changes.rekeyed import resolve_rekeyed
from pgsluice.columnar.changes import RelationChanges
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.testing.changes import ABSENT, UNFIT, ChangesBuilder
from pgsluice.wire import ReplicaIdentity

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("big", pa.string())]
)


def row(id_: int, a: int | None = 0, big: Any = "big") -> dict[str, Any]:
    return {"id": id_, "a": a, "big": big}


def net(*builders: ChangesBuilder, **options: Any) -> NetChanges:
    return net_changes([one.build() for one in builders], schema=SCHEMA, key=("id",), **options)


def key_values(table: pa.Table) -> list[Any]:
    return [tuple(one.values()) for one in table.to_pylist()]


class TestOneKey:
    def test_the_last_change_of_a_key_counts(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1, 1))
        t.insert(row(2, 2))
        t.update(row(1, 3))
        result = net(t)
        assert result.rows.to_pylist() == [row(2, 2), row(1, 3)]
        assert not len(result.deletes)
        assert (result.counts.inserts, result.counts.updates, result.counts.total) == (2, 1, 3)

    def test_a_row_that_came_and_went_leaves_nothing(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1))
        t.delete({"id": 1})
        assert net(t).is_empty

    def test_a_deleted_row_that_came_back_is_replaced(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.delete({"id": 1})
        t.insert(row(1, 9))
        result = net(t)
        assert result.rows.to_pylist() == [row(1, 9)]
        assert not len(result.deletes)

    def test_a_delete_is_by_key(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(7))
        t.delete({"id": 7})
        assert key_values(net(t).deletes) == [(7,)]

    def test_rows_that_are_new_are_known_to_be(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1))
        t.update(row(1, 2))
        t.insert(row(2))
        t.delete({"id": 2})
        assert net(t).only_new
        t.delete({"id": 3})
        t.insert(row(3))
        assert not net(t).only_new

    def test_a_key_that_another_row_left_is_not_new(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2), old={"id": 1})
        t.delete({"id": 2})
        t.insert(row(1))
        result = net(t)
        assert not len(result.deletes)
        assert not result.only_new

    def test_a_row_of_the_target_is_not_an_inserted_one(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(1, 1))
        t.insert(row(2, 2))
        t.update(row(2, 3))
        t.update(row(3, 1))
        t.insert(row(3, 2))
        result = net(t)
        assert result.rows.to_pylist() == [row(1, 1), row(2, 3), row(3, 2)]
        assert result.inserted.tolist() == [False, True, True]

    def test_changes_of_a_deleted_row_are_skipped(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.delete({"id": 1})
        t.update(row(1, 2, ABSENT))
        result = net(t)
        assert not len(result.rows)
        assert key_values(result.deletes) == [(1,)]
        assert result.skipped == 1

    def test_an_unsent_delete_leaves_a_row_for_an_insert_to_replace(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1))
        t.insert(row(2))
        t.delete({"id": 2})
        result = net_changes([t.build()], schema=SCHEMA, key=("id",), is_complete=False)
        assert not result.only_new
        assert result.inserted.tolist() == [True]
        assert (key_values(result.deletes), result.expected_deletes) == ([(2,)], 0)

    def test_no_changes(self) -> None:
        result = net_changes([], schema=SCHEMA, key=("id",))
        assert result.is_empty
        assert result.rows.schema.names == SCHEMA.names


class TestAbsent:
    def test_it_comes_from_an_earlier_change_of_the_batch(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1, 1, "first"))
        t.update(row(1, 2, ABSENT))
        t.update(row(1, 3, ABSENT))
        result = net(t)
        assert result.rows.to_pylist() == [row(1, 3, "first")]
        assert not result.absent

    def test_null_is_a_value(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(1, 1, None))
        t.update(row(1, 2, ABSENT))
        assert net(t).rows.to_pylist() == [row(1, 2, None)]

    def test_else_it_is_the_targets(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(5, 5, "whole"))
        t.update(row(1, 2, ABSENT))
        result = net(t)
        assert result.rows.to_pylist() == [row(5, 5, "whole"), row(1, 2, None)]
        assert result.absent["big"].tolist() == [False, True]
        assert not len(result.rekeyed)

    def test_an_old_row_fills_it(self) -> None:
        t = ChangesBuilder(SCHEMA, identity=ReplicaIdentity.FULL)
        t.update(row(1, 2, ABSENT), old=row(1, 1, "old"))
        result = net(t)
        assert result.rows.to_pylist() == [row(1, 2, "old")]
        assert not result.absent

    def test_an_old_key_fills_an_absent_key(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update({"id": ABSENT, "a": 2, "big": "x"}, old={"id": 4})
        assert net(t).rows.to_pylist() == [row(4, 2, "x")]

    @pytest.mark.parametrize("end", ["delete", "truncate"])
    def test_a_row_after_its_end_has_no_source(self, end: str) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(1, 1, "seen"))
        t.delete({"id": 1}) if end == "delete" else t.truncate()
        t.insert(row(1, 2, ABSENT))
        with pytest.raises(TableError, match="'big'") as caught:
            net(t)
        assert "REPLICA IDENTITY FULL" in str(caught.value)
        assert caught.value.count == 1

    def test_an_insert_without_the_value_has_no_source(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1, 2, ABSENT))
        with pytest.raises(TableError, match="without the value of column 'big'"):
            net(t)

    def test_a_later_value_heals_it(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1, 2, ABSENT))
        t.update(row(1, 2, "now"))
        t.update(row(1, 3, ABSENT))
        assert net(t).rows.to_pylist() == [row(1, 3, "now")]


class TestKeyChanges:
    def test_the_source_is_the_key_from_before(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 1, ABSENT), old={"id": 1})
        t.update(row(3, 1, ABSENT), old={"id": 2})
        result = net(t)
        assert result.rows.to_pylist() == [row(3, 1, None)]
        assert result.rekeyed.tolist() == [0]
        assert key_values(result.source_keys) == [(1,)]
        assert key_values(result.deletes) == [(1,)]

    def test_a_swap(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 20, ABSENT), old={"id": 2})
        t.update(row(2, 10, ABSENT), old={"id": -1})
        result = net(t)
        assert result.rows.to_pylist() == [row(1, 20, None), row(2, 10, None)]
        assert result.rekeyed.tolist() == [0, 1]
        assert key_values(result.source_keys) == [(2,), (1,)]
        assert not len(result.deletes)

    def test_there_and_back_again(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 0, ABSENT), old={"id": 1})
        t.update(row(1, 0, ABSENT), old={"id": 2})
        result = net(t)
        assert result.absent["big"].tolist() == [True]
        assert not len(result.rekeyed)
        assert not len(result.deletes)

    def test_onto_a_key_that_was_deleted(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.delete({"id": 2})
        t.update(row(2, 0, ABSENT), old={"id": 1})
        result = net(t)
        assert key_values(result.source_keys) == [(1,)]
        assert key_values(result.deletes) == [(1,)]

    def test_values_of_the_batch_travel_along(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1, 0, "new"))
        t.update(row(2, 1, ABSENT), old={"id": 1})
        t.insert(row(1, 5, "other"))
        result = net(t)
        assert result.rows.to_pylist() == [row(2, 1, "new"), row(1, 5, "other")]
        assert not result.absent
        assert not len(result.deletes)

    def test_two_rows_of_one_key_are_refused(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1))
        t.insert(row(2))
        t.update(row(2), old={"id": 1})
        with pytest.raises(TableError, match=r"two rows of public.t have the same key"):
            net(t)

    def test_every_moved_row_depends_on_its_source(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 1), old={"id": 1})
        t.insert(row(5))
        t.update(row(6), old={"id": 5})
        result = net(t)
        assert result.inserted.tolist() == [False, True]
        assert result.rekeyed.tolist() == [0]

    def test_a_removed_row_does_not_move(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.delete({"id": 1})
        t.update(row(2, 1), old={"id": 1})
        t.insert(row(2, 5))
        result = net(t)
        assert result.rows.to_pylist() == [row(2, 5)]
        assert result.inserted.tolist() == [True]
        assert result.skipped == 1

    def test_an_insert_over_a_moved_row_replaces_it(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 1, ABSENT), old={"id": 1})
        t.insert(row(2, 5))
        result = net(t)
        assert result.rows.to_pylist() == [row(2, 5)]
        assert result.inserted.tolist() == [True]
        assert key_values(result.deletes) == [(1,)]


class TestRekeyedRows:
    """What the target's rows make of rows whose key changed."""

    def resolved(self, t: ChangesBuilder, *target: dict[str, Any]) -> tuple[NetChanges, int]:
        sources = pa.Table.from_pylist(list(target), schema=SCHEMA)
        return resolve_rekeyed(net(t), sources)

    def test_a_row_with_its_source_is_there(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 1, ABSENT), old={"id": 1})
        result, skipped = self.resolved(t, row(1, 0, "kept"))
        assert result.rows.to_pylist() == [row(2, 1, "kept")]
        assert result.inserted.tolist() == [True]
        assert (key_values(result.deletes), skipped) == ([(1,)], 0)

    def test_a_row_without_its_source_is_skipped(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(2, 1, ABSENT), old={"id": 1})
        t.update(row(3))
        result, skipped = self.resolved(t)
        assert result.rows.to_pylist() == [row(3)]
        assert (key_values(result.deletes), skipped) == ([], 1)

    def test_half_a_swap_leaves_no_row_behind(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 20, ABSENT), old={"id": 2})
        t.update(row(2, 10, ABSENT), old={"id": -1})
        result, skipped = self.resolved(t, row(2, 0, "two"))
        assert result.rows.to_pylist() == [row(1, 20, "two")]
        assert (key_values(result.deletes), skipped) == ([(2,)], 1)


class TestTruncate:
    def test_a_row_after_it_needs_an_insert(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.truncate()
        t.update(row(1, 1, ABSENT))
        t.update(row(2, 1, ABSENT), old={"id": 1})
        t.insert(row(2))
        result = net(t)
        assert result.rows.to_pylist() == [row(2)]
        assert result.inserted.tolist() == [True]
        assert result.skipped == 2

    def test_only_what_comes_after_it_counts(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert(row(1))
        t.truncate()
        t.insert(row(2))
        t.truncate()
        t.insert(row(3))
        t.delete({"id": 3})
        t.insert(row(4))
        result = net(t)
        assert result.truncated
        assert result.rows.to_pylist() == [row(4)]
        assert not len(result.deletes)
        assert result.counts.truncates == 2

    def test_of_a_partition_the_stream_does_not_tell_enough(self) -> None:
        facts = RelationFacts(
            16385, "public", "t_1", "r", 16384, "public", "t", ("id",), ("id",), "d", 1, ()
        )
        t = ChangesBuilder(SCHEMA, oid=16385, name="t_1", facts=facts)
        t.truncate()
        with pytest.raises(TableError, match=r"partition public.t_1 was truncated") as caught:
            net(t)
        assert caught.value.remedy is Remedy.COPY


def facts_of(*columns: ColumnFacts) -> RelationFacts:
    return RelationFacts(
        16384, "public", "t", "r", 16384, "public", "t", ("id",), ("id",), "d", 1,
        (ColumnFacts("id", 1, 20, -1), *columns),
    )  # fmt: skip


class TestRuns:
    def test_runs_of_several_leaves_are_put_in_order(self) -> None:
        one, two = ChangesBuilder(SCHEMA, oid=1), ChangesBuilder(SCHEMA, oid=2)
        one.insert(row(1, 1, "x"))
        two.position = 101
        two.insert(row(1, 3, "z"))
        one.position, one.ordinal = 101, 1
        one.delete({"id": 1})
        two.ordinal = 2
        two.insert(row(1, 4, "w"))
        expected = [row(1, 4, "w")]
        assert net(one, two).rows.to_pylist() == expected
        assert net(two, one).rows.to_pylist() == expected

    def test_a_column_that_a_run_lacks_is_null_there(self) -> None:
        narrow = ChangesBuilder(SCHEMA.remove(1))
        narrow.insert({"id": 1, "big": "x"})
        wide = ChangesBuilder(SCHEMA, position=200)
        wide.insert(row(2, 2))
        assert net(narrow, wide).rows.to_pylist() == [row(1, None, "x"), row(2, 2)]

    def test_unless_rows_from_before_have_a_value(self) -> None:
        """Rows of before the first change that has the column, of any leaf; not those after."""
        leaf, narrow = ChangesBuilder(SCHEMA.remove(1), oid=1), ChangesBuilder(SCHEMA.remove(1))
        leaf.insert({"id": 1, "big": "x"})
        narrow.position = 200
        narrow.insert({"id": 3, "big": "y"})
        wide = ChangesBuilder(SCHEMA, position=200)
        wide.ordinal = 1
        wide.insert(row(2, None))
        dropped = ChangesBuilder(SCHEMA.remove(1), position=200)
        dropped.ordinal = 2
        dropped.insert({"id": 4, "big": "z"})
        five = pa.scalar(5, pa.int32())
        rows = net(leaf, wide, narrow, dropped, missing={"a": five}).rows.to_pylist()
        assert rows == [row(1, 5, "x"), row(3, 5, "y"), row(2, None), row(4, None, "z")]
        gone = net(leaf, missing={"a": five}).rows.to_pylist()
        assert gone == [row(1, None, "x")]

    def test_a_changed_type_is_refused(self) -> None:
        t = ChangesBuilder(SCHEMA.set(1, pa.field("a", pa.int64())))
        t.insert(row(1))
        with pytest.raises(TableError, match=r"'a' of public.t changed its type"):
            net(t)

    def test_long_text_is_text(self) -> None:
        t = ChangesBuilder(SCHEMA.set(2, pa.field("big", pa.large_string())))
        t.insert(row(1))
        assert net(t).rows.schema.field("big").type == pa.string()


class TestKeys:
    def test_a_composite_key_of_text_and_bytes(self) -> None:
        schema = pa.schema([("x", pa.string()), ("y", pa.binary()), ("v", pa.int32())])
        t = ChangesBuilder(schema, ("x", "y"))
        for x, y, v in [("a", b"b", 1), ("ab", b"", 2), ("", b"ab", 3), ("a", b"b", 4)]:
            t.insert({"x": x, "y": y, "v": v})
        result = net_changes([t.build()], schema=schema, key=("x", "y"))
        assert result.rows.column("v").to_pylist() == [2, 3, 4]

    def test_a_null_key_is_refused(self) -> None:
        t = ChangesBuilder(SCHEMA)
        t.insert({"id": None})
        with pytest.raises(TableError, match=r"key column 'id' of public.t is NULL in 1 row"):
            net(t)

    def test_a_key_that_old_tuples_do_not_carry_is_refused(self) -> None:
        t = ChangesBuilder(SCHEMA, ("a",))
        t.update(row(1))
        with pytest.raises(TableError, match="not part of its replica identity"):
            net(t)

    def test_but_inserts_alone_are_fine(self) -> None:
        t = ChangesBuilder(SCHEMA, ())
        t.insert(row(1))
        assert net(t).rows.to_pylist() == [row(1)]

    def test_a_key_of_a_type_without_equality_is_refused(self) -> None:
        schema = pa.schema([("id", pa.struct([("a", pa.int32())]))])
        t = ChangesBuilder(schema)
        t.insert({"id": {"a": 1}})
        with pytest.raises(TableError, match="cannot be part of a key"):
            net_changes([t.build()], schema=schema, key=("id",))

    def test_arrays_are_keys(self) -> None:
        schema = pa.schema([("id", pa.list_(pa.string())), ("a", pa.int32())])
        t = ChangesBuilder(schema)
        for number, key in enumerate([["a,b"], ["a", "b"], [], [""], [None], ["a", "b"]]):
            t.insert({"id": key, "a": number})
        result = net_changes([t.build()], schema=schema, key=("id",))
        assert [one["a"] for one in result.rows.to_pylist()] == [0, 2, 3, 4, 5]

    def test_zero_and_minus_zero_are_two_keys_and_nan_is_one(self) -> None:
        schema = pa.schema([("id", pa.float64()), ("a", pa.int32())])
        t = ChangesBuilder(schema)
        t.insert({"id": 0.0, "a": 1})
        t.update({"id": -0.0, "a": 2}, old={"id": 0.0})
        t.insert({"id": float("nan"), "a": 3})
        t.update({"id": float("nan"), "a": 4})
        result = net_changes([t.build()], schema=schema, key=("id",))
        rows = [(repr(one["id"]), one["a"]) for one in result.rows.to_pylist()]
        assert rows == [("-0.0", 2), ("nan", 4)]


class TestWithoutKey:
    def test_inserts_are_kept_in_order_with_doubles(self) -> None:
        t = ChangesBuilder(SCHEMA, ())
        for one in (2, 1, 2):
            t.insert(row(one))
        result = net_changes([t.build()], schema=SCHEMA, key=())
        assert result.rows.column("id").to_pylist() == [2, 1, 2]

    def test_a_truncate_empties(self) -> None:
        t = ChangesBuilder(SCHEMA, ())
        t.insert(row(1))
        t.truncate()
        result = net_changes([t.build()], schema=SCHEMA, key=())
        assert result.truncated
        assert not len(result.rows)
        assert not result.is_empty

    @pytest.mark.parametrize("action", ["update", "delete"])
    def test_anything_else_is_refused(self, action: str) -> None:
        t = ChangesBuilder(SCHEMA, (), identity=ReplicaIdentity.FULL)
        t.update(row(1), old=row(1)) if action == "update" else t.delete(row(1))
        with pytest.raises(TableError, match="has no key"):
            net_changes([t.build()], schema=SCHEMA, key=())


def test_a_value_that_does_not_fit_is_counted_and_not_shown() -> None:
    t = ChangesBuilder(SCHEMA)
    t.insert(row(1, 1, UNFIT))
    t.insert(row(2, 1, UNFIT))
    with pytest.raises(TableError, match=r"2 value\(s\) of column 'big' of public.t do not fit"):
        net(t)


# Row by row on a dictionary, the plain way, against batches of net changes.

Model = dict[int, tuple[int, str | None]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Model, list[tuple[Any, ...]], bool]:
    """The target's rows, changes of a source, and whether it sends all of its changes.

    The source may have rows that the target lacks, and an INSERT may hit a row whose DELETE was
    not published.
    """
    keys = st.integers(0, 5)
    text = st.one_of(st.none(), st.sampled_from(["x", "y", "z"]))
    rows: Model = draw(st.dictionaries(keys, st.tuples(keys, text), max_size=4))
    target = {key: row for key, row in rows.items() if draw(st.integers(0, 3))}
    stale = set[int]()
    is_complete = draw(st.booleans())
    unsent = [] if is_complete else ["unsent insert", "unsent delete"]
    changes: list[tuple[Any, ...]] = []
    for number in range(draw(st.integers(0, 25))):
        kind = draw(
            st.sampled_from(["insert", "update", "update", "move", "delete", "truncate", *unsent])
        )
        here, free = sorted(rows), [k for k in range(6) if k not in rows]
        if kind in ("insert", "unsent insert") and free:
            key = draw(st.sampled_from(free))
            rows[key] = (number, draw(text))
            if kind == "insert":
                changes.append(("insert", key, *rows[key]))
                stale.discard(key)
        elif kind in ("update", "move") and here:
            # Onto a row whose DELETE was not published, PostgreSQL's worker fails.
            free = [key for key in free if key not in stale]
            key = draw(st.sampled_from(here))
            if kind == "move" and not free:
                continue
            old = rows.pop(key)
            is_kept = draw(st.booleans())
            to = draw(st.sampled_from(free)) if kind == "move" else key
            rows[to] = (number, old[1] if is_kept else draw(text))
            changes.append(("update", key, old, to, number, ABSENT if is_kept else rows[to][1]))
        elif kind in ("delete", "unsent delete") and here:
            key = draw(st.sampled_from(here))
            old = rows.pop(key)
            if kind == "delete":
                changes.append(("delete", key, old))
            else:
                stale.add(key)
        elif kind == "truncate" and draw(st.integers(0, 3)) == 0:
            rows.clear()
            stale.clear()
            changes.append(("truncate",))
    return target, changes, is_complete


def replayed(target: Model, changes: list[tuple[Any, ...]], *, is_full: bool) -> Model:
    """Row by row as PostgreSQL's apply worker: a row that is missing is skipped."""
    rows = dict(target)
    for change in changes:
        match change:
            case ("insert", key, a, big):
                rows[key] = (a, big)
            case ("update", key, old, to, a, big):
                if key in rows:
                    local = rows.pop(key)
                    kept = old[1] if is_full else local[1]
                    rows[to] = (a, kept if big is ABSENT else big)
            case ("delete", key, _):
                rows.pop(key, None)
            case _:
                rows.clear()
    return rows


def record(builder: ChangesBuilder, change: tuple[Any, ...]) -> None:
    match change:
        case ("insert", key, a, big):
            builder.insert(row(key, a, big))
        case ("update", key, old, to, a, big):
            needs_old = builder.is_full or key != to
            builder.update(row(to, a, big), old=row(key, *old) if needs_old else None)
        case ("delete", key, old):
            builder.delete(row(key, *old))
        case ("truncate",):
            builder.truncate()


def apply(target: Model, result: NetChanges) -> Model:
    """What the contract of NetChanges says, on a dictionary."""
    after = {} if result.truncated else dict(target)
    if result.only_new and not result.truncated:
        assert not set(target) & {one["id"] for one in result.rows.to_pylist()}
    found = [row(key, *target[key]) for (key,) in key_values(result.source_keys) if key in target]
    result, _ = resolve_rekeyed(result, pa.Table.from_pylist(found, schema=SCHEMA))
    for (key,) in key_values(result.deletes):
        after.pop(key, None)
    absent = result.absent.get("big", np.zeros(len(result.rows), np.bool_))
    for i, one in enumerate(result.rows.to_pylist()):
        if one["id"] in target or result.inserted[i]:
            big = target[one["id"]][1] if absent[i] else one["big"]
            after[one["id"]] = (one["a"], big)
    return after


@settings(deadline=None, max_examples=300)
@given(histories(), st.randoms(use_true_random=False), st.sampled_from("df"))
def test_batches_of_net_changes_equal_row_by_row(
    history: tuple[Model, list[tuple[Any, ...]], bool], random: Any, identity: str
) -> None:
    target, changes, is_complete = history
    expected = replayed(target, changes, is_full=identity == "f")
    position = 100
    while changes:
        size = random.randint(1, len(changes))
        batch, changes = changes[:size], changes[size:]
        runs: list[RelationChanges] = []
        builder = ChangesBuilder(SCHEMA, identity=ReplicaIdentity(identity), position=position)
        for change in batch:
            record(builder, change)
            if random.random() < 0.3:
                builder.commit()
            if random.random() < 0.2:
                runs.append(builder.build())
                ended = builder
                builder = ChangesBuilder(SCHEMA, identity=ended.identity, position=ended.position)
                builder.ordinal = ended.ordinal
        runs.append(builder.build())
        random.shuffle(runs)
        position = builder.position + 1
        result = net_changes(runs, schema=SCHEMA, key=("id",), is_complete=is_complete)
        target = apply(target, result)
    assert target == expected
