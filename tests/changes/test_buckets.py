"""Buckets of changes that are netted apart leave what all changes leave together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.changes.buckets import BUCKETS, EVERY_BUCKET, linked, place
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.testing.changes import ABSENT, ChangesBuilder

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("big", pa.string())]
)
KEY = ("id",)


@st.composite
def changes(draw: st.DrawFn) -> ChangesBuilder:
    """Changes of a source that has some rows before them."""
    live = draw(st.sets(st.integers(0, 30), max_size=12))
    t = ChangesBuilder(SCHEMA)
    for number in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["insert", "update", "update", "move", "delete", "truncate"]))
        free = sorted(set(range(40)) - live)
        if kind == "truncate" and draw(st.integers(0, 5)) == 0:
            live.clear()
            t.truncate()
        elif kind == "insert":
            live.add(id_ := draw(st.sampled_from(free)))
            t.insert({"id": id_, "a": number, "big": "new"})
        elif live and kind in ("update", "move", "delete"):
            id_ = draw(st.sampled_from(sorted(live)))
            row: dict[str, Any] = {
                "id": id_,
                "a": number,
                "big": draw(st.sampled_from(["x", ABSENT])),
            }
            if kind == "update":
                t.update(row)
            else:
                live.remove(id_)
            if kind == "delete":
                t.delete({"id": id_})
            elif kind == "move":
                live.add(new := draw(st.sampled_from(free)))
                t.update({**row, "id": new}, old={"id": id_})
    return t


def summary(*nets: NetChanges) -> tuple[list[Any], list[Any], bool]:
    """Final rows with what they lack and where they come from, deleted keys, and the truncation."""
    rows, deletes = [], []
    for net in nets:
        sources = dict(
            zip(net.rekeyed.tolist(), net.source_keys.column("id").to_pylist(), strict=True)
        )
        for index, row in enumerate(net.rows.to_pylist()):
            lacks = [name for name, mask in net.absent.items() if mask[index]]
            values = [value for name, value in row.items() if name not in lacks]
            rows.append((row["id"], values, lacks, bool(net.inserted[index]), sources.get(index)))
        deletes += net.deletes.column("id").to_pylist()
    return sorted(rows, key=repr), sorted(deletes), any(net.truncated for net in nets)


@settings(max_examples=examples(30), deadline=None)
@given(changes())
def test_groups_of_linked_buckets_net_to_what_all_changes_net_to(t: ChangesBuilder) -> None:
    run = t.build()
    placement = place(run, KEY)
    groups = linked(placement.links)
    assert sorted(bucket for group in groups for bucket in group) == list(range(BUCKETS))
    nets = []
    for group in groups:
        chosen = np.flatnonzero(np.isin(placement.buckets, [*group, EVERY_BUCKET]))
        nets.append(net_changes([run.take(chosen)], schema=SCHEMA, key=KEY))
    assert summary(*nets) == summary(net_changes([run], schema=SCHEMA, key=KEY))


def test_a_change_of_key_is_where_both_keys_are() -> None:
    t = ChangesBuilder(SCHEMA)
    for id_ in range(200):
        t.update({"id": id_ + 1000, "a": 0, "big": "x"}, old={"id": id_})
    placement = place(t.build(), KEY)
    assert len(placement.links) == BUCKETS - 1, "a transaction of many pieces has one each"
    assert linked(placement.links) == [list(range(BUCKETS))]
    assert linked([(1, 2), (3, 2)])[1] == [1, 2, 3]


def test_rows_of_a_table_without_a_key_are_divided_evenly() -> None:
    t = ChangesBuilder(SCHEMA, ())
    for _ in range(2 * BUCKETS):
        t.insert({"id": 1, "a": 1, "big": "same"})
    assert np.bincount(place(t.build(), ()).buckets).tolist() == [2] * BUCKETS
