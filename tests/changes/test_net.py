"""Net changes: what a batch leaves of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.changes.lineage import number_rows
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.changes.rekeyed import resolve_rekeyed
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import RelationFacts
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


Change = Callable[[ChangesBuilder], None]


def insert(*values: Any) -> Change:
    return lambda t: t.insert(row(*values))


def update(*values: Any, old: int | None = None) -> Change:
    return lambda t: t.update(row(*values), old=None if old is None else {"id": old})


def delete(id_: int) -> Change:
    return lambda t: t.delete({"id": id_})


def truncate(t: ChangesBuilder) -> None:
    t.truncate()


def made(*changes: Change) -> ChangesBuilder:
    t = ChangesBuilder(SCHEMA)
    for change in changes:
        change(t)
    return t


def parts(result: NetChanges) -> dict[str, Any]:
    """Net changes as values that can be compared."""
    return {
        "rows": [tuple(one.values()) for one in result.rows.to_pylist()],
        "inserted": result.inserted.tolist(),
        "absent": result.absent["big"].tolist() if "big" in result.absent else None,
        "deletes": [id_ for (id_,) in key_values(result.deletes)],
        "sources": [id_ for (id_,) in key_values(result.source_keys)],
        "rekeyed": result.rekeyed.tolist(),
        "skipped": result.skipped,
        "only_new": result.only_new,
        "truncated": result.truncated,
        "is_empty": result.is_empty,
    }


B = "big"
CASES: dict[str, tuple[list[Change], dict[str, Any]]] = {
    # Changes of one key.
    "the last change counts": (
        [insert(1, 1), insert(2, 2), update(1, 3)],
        {"rows": [(2, 2, B), (1, 3, B)], "deletes": []},
    ),
    "a row that came and went leaves nothing": ([insert(1), delete(1)], {"is_empty": True}),
    "a deleted row that came back is replaced": (
        [delete(1), insert(1, 9)],
        {"rows": [(1, 9, B)], "deletes": []},
    ),
    "a delete is by key": ([update(7), delete(7)], {"rows": [], "deletes": [7]}),
    "rows that are new are known to be": (
        [insert(1), update(1, 2), insert(2), delete(2)],
        {"only_new": True},
    ),
    "a row that was deleted before is not new": (
        [insert(1), delete(3), insert(3)],
        {"only_new": False},
    ),
    "a key that another row left is not new": (
        [update(2, old=1), delete(2), insert(1)],
        {"deletes": [], "only_new": False},
    ),
    "a row of the target is not an inserted one": (
        [update(1, 1), insert(2, 2), update(2, 3), update(3, 1), insert(3, 2)],
        {"rows": [(1, 1, B), (2, 3, B), (3, 2, B)], "inserted": [False, True, True]},
    ),
    "changes of a deleted row are skipped": (
        [delete(1), update(1, 2, ABSENT)],
        {"rows": [], "deletes": [1], "skipped": 1},
    ),
    # Values that did not come.
    "an absent value comes from an earlier change": (
        [insert(1, 1, "first"), update(1, 2, ABSENT), update(1, 3, ABSENT)],
        {"rows": [(1, 3, "first")], "absent": None},
    ),
    "null is a value": ([update(1, 1, None), update(1, 2, ABSENT)], {"rows": [(1, 2, None)]}),
    "else it is the target's": (
        [insert(5, 5, "whole"), update(1, 2, ABSENT)],
        {"rows": [(5, 5, "whole"), (1, 2, None)], "absent": [False, True], "rekeyed": []},
    ),
    "a later value heals it": (
        [insert(1, 2, ABSENT), update(1, 2, "now"), update(1, 3, ABSENT)],
        {"rows": [(1, 3, "now")]},
    ),
    # Changes of keys.
    "the source is the key from before": (
        [update(2, 1, ABSENT, old=1), update(3, 1, ABSENT, old=2)],
        {"rows": [(3, 1, None)], "rekeyed": [0], "sources": [1], "deletes": [1]},
    ),
    "a swap": (
        [
            update(-1, 10, ABSENT, old=1),
            update(1, 20, ABSENT, old=2),
            update(2, 10, ABSENT, old=-1),
        ],
        {
            "rows": [(1, 20, None), (2, 10, None)],
            "rekeyed": [0, 1],
            "sources": [2, 1],
            "deletes": [],
        },
    ),
    "there and back again": (
        [update(2, 0, ABSENT, old=1), update(1, 0, ABSENT, old=2)],
        {"absent": [True], "rekeyed": [], "deletes": []},
    ),
    "onto a key that was deleted": (
        [delete(2), update(2, 0, ABSENT, old=1)],
        {"sources": [1], "deletes": [1]},
    ),
    "values of the batch travel along": (
        [insert(1, 0, "new"), update(2, 1, ABSENT, old=1), insert(1, 5, "other")],
        {"rows": [(2, 1, "new"), (1, 5, "other")], "absent": None, "deletes": []},
    ),
    "every moved row depends on its source": (
        [update(2, 1, old=1), insert(5), update(6, old=5)],
        {"inserted": [False, True], "rekeyed": [0]},
    ),
    "a removed row does not move": (
        [delete(1), update(2, 1, old=1), insert(2, 5)],
        {"rows": [(2, 5, B)], "inserted": [True], "skipped": 1},
    ),
    "an insert over a moved row replaces it": (
        [update(2, 1, ABSENT, old=1), insert(2, 5)],
        {"rows": [(2, 5, B)], "inserted": [True], "deletes": [1]},
    ),
    # TRUNCATE.
    "a row after a truncate needs an insert": (
        [truncate, update(1, 1, ABSENT), update(2, 1, ABSENT, old=1), insert(2)],
        {"rows": [(2, 0, B)], "inserted": [True], "skipped": 2},
    ),
    "only what comes after a truncate counts": (
        [insert(1), truncate, insert(2), truncate, insert(3), delete(3), insert(4)],
        {"rows": [(4, 0, B)], "truncated": True, "deletes": []},
    ),
}


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES)
def test_what_a_batch_leaves(changes: list[Change], expected: dict[str, Any]) -> None:
    result = parts(net(made(*changes)))
    assert {name: result[name] for name in expected} == expected


def test_an_unsent_delete_leaves_a_row_for_an_insert_to_replace() -> None:
    result = net(made(insert(1), insert(2), delete(2)), is_complete=False)
    assert not result.only_new
    assert result.inserted.tolist() == [True]
    assert (key_values(result.deletes), result.expected_deletes) == ([(2,)], 0)


def test_no_changes() -> None:
    result = net_changes([], schema=SCHEMA, key=("id",))
    assert result.is_empty
    assert result.rows.schema.names == SCHEMA.names


def test_an_old_row_fills_an_absent_value() -> None:
    t = ChangesBuilder(SCHEMA, identity=ReplicaIdentity.FULL)
    t.update(row(1, 2, ABSENT), old=row(1, 1, "old"))
    assert net(t).rows.to_pylist() == [row(1, 2, "old")]
    assert not net(t).absent


def test_an_old_key_fills_an_absent_key() -> None:
    t = ChangesBuilder(SCHEMA)
    t.update({"id": ABSENT, "a": 2, "big": "x"}, old={"id": 4})
    assert net(t).rows.to_pylist() == [row(4, 2, "x")]


@pytest.mark.parametrize("before", [[], [update(1, 1, "seen"), delete(1)], [update(1), truncate]])
def test_an_inserted_row_without_the_value_has_no_source(before: list[Change]) -> None:
    with pytest.raises(TableError, match="lack column 'big'") as caught:
        net(made(*before, insert(1, 2, ABSENT)))
    assert "REPLICA IDENTITY FULL" in str(caught.value)
    assert caught.value.count == 1


def test_two_rows_of_one_key_are_refused() -> None:
    with pytest.raises(TableError, match=r"two rows of table public.t have the same"):
        net(made(insert(1), insert(2), update(2, old=1)))


class TestRekeyedRows:
    """What the target's rows make of rows whose key changed."""

    def resolved(self, t: ChangesBuilder, *target: dict[str, Any]) -> tuple[NetChanges, int]:
        sources = pa.Table.from_pylist(list(target), schema=SCHEMA)
        return resolve_rekeyed(net(t), sources)

    def test_a_row_with_its_source_is_there(self) -> None:
        result, skipped = self.resolved(made(update(2, 1, ABSENT, old=1)), row(1, 0, "kept"))
        assert result.rows.to_pylist() == [row(2, 1, "kept")]
        assert result.inserted.tolist() == [True]
        assert (key_values(result.deletes), skipped) == ([(1,)], 0)

    def test_a_row_without_its_source_is_skipped(self) -> None:
        result, skipped = self.resolved(made(update(2, 1, ABSENT, old=1), update(3)))
        assert result.rows.to_pylist() == [row(3)]
        assert (key_values(result.deletes), skipped) == ([], 1)

    def test_half_a_swap_leaves_no_row_behind(self) -> None:
        swap, _ = CASES["a swap"]
        result, skipped = self.resolved(made(*swap), row(2, 0, "two"))
        assert result.rows.to_pylist() == [row(1, 20, "two")]
        assert (key_values(result.deletes), skipped) == ([(2,)], 1)


LEAF = RelationFacts(
    16385, "public", "t_1", "r", 16384, "public", "t", ("id",), ("id",), "d", 1, ()
)


def test_of_a_truncated_partition_the_stream_does_not_tell_enough() -> None:
    t = ChangesBuilder(SCHEMA, oid=16385, facts=LEAF)
    t.truncate()
    with pytest.raises(TableError, match=r"partition public.t_1 was truncated") as caught:
        net(t)
    assert caught.value.remedy is Remedy.COPY
    assert caught.value.hint == "nothing to do: pgsluice copies the table again"
    t.insert(row(1, 1, "x"))
    with pytest.raises(TableError, match=r"partition public.t_1 was truncated"):
        net(t, truncates=[(t.position, 1)])
    all_leaves = net(t, truncates=[(t.position, 0)])
    assert (all_leaves.truncated, all_leaves.rows.to_pylist()) == (True, [row(1, 1, "x")])


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
        with pytest.raises(TableError, match=r"'a' of table public.t changed its type"):
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
        with pytest.raises(
            TableError, match=r"key column 'id' of table public.t is NULL in 1 changed row"
        ):
            net(t)

    def test_a_key_that_old_tuples_do_not_carry_is_refused(self) -> None:
        t = ChangesBuilder(SCHEMA, ("a",))
        t.update(row(1))
        with pytest.raises(TableError, match="not part of the table's replica identity"):
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

    @pytest.mark.parametrize("action", ["update", "update with a key", "delete"])
    def test_changes_without_the_whole_old_row_are_refused(self, action: str) -> None:
        t = ChangesBuilder(SCHEMA, ("id",))
        if action == "update":
            t.update(row(1))
        elif action == "delete":
            t.delete(row(1))
        else:
            t.update(row(1), old=row(2))
        with pytest.raises(TableError, match="do not carry the whole old row") as caught:
            net_changes([t.build()], schema=SCHEMA, key=())
        assert "ALTER TABLE public.t REPLICA IDENTITY FULL" in str(caught.value.hint)

    def test_changes_of_a_batch_cancel(self) -> None:
        t = ChangesBuilder(SCHEMA, (), identity=ReplicaIdentity.FULL)
        t.insert(row(1))
        t.update(row(2), old=row(1))
        t.delete(row(2))
        t.update(row(4, None), old=row(3, None))
        t.update(row(3, None), old=row(4, None))
        net = net_changes([t.build()], schema=SCHEMA, key=())
        assert not len(net.rows)
        assert net.whole_rows is not None
        balance = net.whole_rows.balance()
        assert not balance.added.any()
        assert not balance.taken.any()
        needed = net.whole_rows.values.filter(pa.array(net.whole_rows.needed > 0))
        assert needed.to_pylist() == [row(3, None)], "the target has to have it"

    def test_a_row_that_nobody_has_is_skipped_with_what_it_would_write(self) -> None:
        t = ChangesBuilder(SCHEMA, (), identity=ReplicaIdentity.FULL)
        t.truncate()
        t.update(row(2), old=row(1))
        t.insert(row(1))
        t.delete(row(2))
        t.insert(row(3))
        net = net_changes([t.build()], schema=SCHEMA, key=())
        assert net.rows.to_pylist() == [row(1), row(3)]
        assert net.skipped == 2
        assert net.whole_rows is None

    @pytest.mark.parametrize("action", ["insert", "delete"])
    def test_values_that_do_not_fit_are_refused(self, action: str) -> None:
        """As NULL, they would make different rows equal."""
        t = ChangesBuilder(SCHEMA, (), identity=ReplicaIdentity.FULL)
        t.insert(row(1, 1, UNFIT)) if action == "insert" else t.delete(row(1, 1, UNFIT))
        with pytest.raises(TableError, match=r"'big' of table public.t do not fit"):
            net_changes([t.build()], schema=SCHEMA, key=())


def test_a_value_that_does_not_fit_is_counted_and_not_shown() -> None:
    t = ChangesBuilder(SCHEMA)
    t.insert(row(1, 1, UNFIT))
    t.insert(row(2, 1, UNFIT))
    with pytest.raises(TableError, match=r"2 value\(s\) of column 'big' of table public.t do not"):
        net(t)


def test_what_to_do_about_a_partitions_values_names_the_table_that_is_copied() -> None:
    t = ChangesBuilder(SCHEMA, oid=16385, facts=LEAF)
    t.insert(row(1, 1, UNFIT))
    with pytest.raises(TableError, match=r"column 'big' of table public.t_1 do not fit") as caught:
        net(t)
    hint = str(caught.value.hint)
    assert 'types = { "public.t.big" = "string" }' in hint
    assert hint.endswith("pgsluice copy CONFIG public.t")


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.string())],
    ids=str,
)
def test_null_is_another_value_than_an_empty_one(kind: pa.DataType) -> None:
    empty = {"a": None} if pa.types.is_struct(kind) else []
    rows = pa.table({"v": pa.array([empty, None, empty, None], kind)})
    assert number_rows(rows, ("v",)).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
