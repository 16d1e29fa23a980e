"""The sink contract: rows of tables without a key, which are found by all of their values."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_tests import KEYLESS, SCHEMA, SinkTests, batches, identity, row
from pgsluice.wire import ReplicaIdentity


def whole(schema: pa.Schema = SCHEMA, position: int = 100) -> ChangesBuilder:
    """Changes whose old tuples have all columns."""
    return ChangesBuilder(schema, (), identity=ReplicaIdentity.FULL, position=position)


def net_whole(t: ChangesBuilder, schema: pa.Schema = SCHEMA) -> NetChanges:
    """The net changes of these changes, for a table without a key."""
    return net_changes([t.build()], schema=schema, key=())


class WholeRowsContract(SinkTests):
    """An update or delete changes exactly one of the rows that are equal to the old one."""

    def bag(self, sink: Sink, *rows: dict[str, Any], table: TargetTable = KEYLESS) -> None:
        """Copy rows to a table without a key."""
        self.writer(sink, table=table).load(batches(*rows, schema=table.schema), Lsn(100))
        if not sink.open(table, identity()).can_change_whole_rows():
            pytest.skip("the sink cannot find whole rows: their tables are parked")

    def counted(self, sink: Sink, table: TargetTable = KEYLESS) -> Counter[tuple[Any, ...]]:
        """The rows, each with its number."""
        return Counter(tuple(each.values()) for each in self.rows(sink, table))

    def test_one_of_equal_rows_is_changed(self, sink: Sink) -> None:
        self.bag(sink, row(1), row(1), row(1), row(2, None, None), row(2, None, None))
        t = whole()
        t.delete(row(1))
        t.update(row(1, 9), old=row(1))
        t.update(row(2, 7, None), old=row(2, None, None))
        t.insert(row(3))
        writer = self.writer(sink, table=KEYLESS)
        applied = writer.apply(net_whole(t), Lsn(110))
        assert self.counted(sink) == Counter(
            [(1, 0, "big"), (1, 9, "big"), (2, None, None), (2, 7, None), (3, 0, "big")]
        )
        counts = applied.rows_inserted, applied.rows_updated, applied.rows_deleted
        assert (*counts, applied.rows_skipped) == (1, 2, 1, 0)
        assert self.writer(sink, table=KEYLESS).position() == 110

    def test_changes_of_rows_that_the_table_lacks_are_skipped(self, sink: Sink) -> None:
        self.bag(sink, row(1), row(2))
        t = whole()
        t.delete(row(8))
        t.update(row(9), old=row(8))
        t.update(row(10), old=row(9))
        t.update(row(5), old=row(1))
        t.update(row(6), old=row(1))
        t.insert(row(8))
        applied = self.writer(sink, table=KEYLESS).apply(net_whole(t), Lsn(110))
        assert self.counted(sink) == Counter([(2, 0, "big"), (5, 0, "big"), (8, 0, "big")])
        assert applied.rows_skipped == 4

    def test_changes_begin_a_table_without_a_key(self, sink: Sink) -> None:
        if not sink.open(KEYLESS, identity()).can_change_whole_rows():
            pytest.skip("the sink cannot find whole rows: their tables are parked")
        t = whole().delete(row(1)).insert(row(2)).update(row(3), old=row(2))
        applied = self.writer(sink, table=KEYLESS).apply(net_whole(t), Lsn(110))
        assert self.counted(sink) == Counter([(3, 0, "big")])
        assert applied.rows_skipped == 1

    def test_a_truncate_leaves_no_row_to_change(self, sink: Sink) -> None:
        self.bag(sink, row(1), row(1))
        t = whole()
        t.delete(row(1))
        t.truncate()
        t.delete(row(1))
        t.insert(row(2))
        t.update(row(3), old=row(2))
        applied = self.writer(sink, table=KEYLESS).apply(net_whole(t), Lsn(110))
        assert self.counted(sink) == Counter([(3, 0, "big")])
        assert applied.rows_skipped == 1

    def test_rows_from_before_a_column_have_null_in_it(self, sink: Sink) -> None:
        """Files that lack a column, and those that have it, with NULL in both."""
        self.bag(sink, row(1), row(1), row(2))
        wide = SCHEMA.append(pa.field("more", pa.string()))
        table = TargetTable("public", "keyless", wide, ())
        t = whole(wide).insert({**row(1), "more": None}).insert({**row(1), "more": "x"})
        self.writer(sink, table=table).apply(net_whole(t, wide), Lsn(110))
        t = whole(wide, position=120)
        for _ in range(3):
            t.delete({**row(1), "more": None})
        t.update({**row(2), "more": "y"}, old={**row(2), "more": None})
        applied = self.writer(sink, table=table).apply(net_whole(t, wide), Lsn(120))
        assert applied.rows_skipped == 0
        assert self.counted(sink, table) == Counter([(1, 0, "big", "x"), (2, 0, "big", "y")])

    def test_rows_without_a_dropped_column_are_equal_without_it(self, sink: Sink) -> None:
        self.bag(sink, row(1, 5), row(1, 6), row(2, 7))
        narrow = pa.schema([field for field in SCHEMA if field.name != "a"])
        t = whole(narrow)
        t.delete({"id": 1, "big": "big"})
        t.update({"id": 3, "big": "big"}, old={"id": 2, "big": "big"})
        sent = net_changes([t.build()], schema=SCHEMA, key=())
        applied = self.writer(sink, table=KEYLESS).apply(sent, Lsn(110))
        assert applied.rows_skipped == 0
        [kept, new] = sorted(self.rows(sink, KEYLESS), key=lambda each: int(each["id"]))
        assert kept in (row(1, 5), row(1, 6))
        assert new == row(3, None)

    @pytest.mark.parametrize("staged", [False, True])
    def test_random_changes_of_few_rows(self, sink: Sink, staged: bool) -> None:
        """As the same changes of a list: at once, and in pieces that start from each other."""
        rng = random.Random(staged)  # noqa: S311 - a test's
        rows = [row(rng.randint(1, 3), rng.choice([None, 1])) for _ in range(40)]
        self.bag(sink, *rows)
        for position in range(110, 200, 10):
            pieces = []
            for _ in range(3):
                t = whole(position=position)
                for _ in range(rng.randint(1, 12)):
                    new = row(rng.randint(1, 3), rng.choice([None, 1, 2]))
                    old = rng.choice(rows) if rows else None
                    action = rng.choice(["insert", "update", "delete"])
                    if action == "insert" or old is None:
                        t.insert(new)
                        rows.append(new)
                        continue
                    rows.remove(old)
                    if action == "update":
                        t.update(new, old=old)
                        rows.append(new)
                    else:
                        t.delete(old)
                pieces.append(t)
            writer = self.writer(sink, table=KEYLESS)
            writer.position()
            if staged and writer.can_stage_changes():
                applied = writer.apply_pieces(map(net_whole, pieces), Lsn(position))
            else:
                runs = [t.build() for t in pieces]
                for number, run in enumerate(runs):
                    run.ordinals[:] += 100 * number
                applied = writer.apply(net_changes(runs, schema=SCHEMA, key=()), Lsn(position))
            assert applied.rows_skipped == 0
            assert self.counted(sink) == Counter(tuple(each.values()) for each in rows)

    def test_a_sink_that_cannot_find_whole_rows_refuses_them(self, sink: Sink) -> None:
        self.writer(sink, table=KEYLESS).load(batches(row(1)), Lsn(100))
        if sink.open(KEYLESS, identity()).can_change_whole_rows():
            return
        with pytest.raises(TableError, match="does not support tables without a key"):
            self.writer(sink, table=KEYLESS).apply(net_whole(whole().delete(row(1))), Lsn(110))
