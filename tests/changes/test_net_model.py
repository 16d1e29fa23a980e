"""Batches of net changes give the same rows as changes that are applied row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.changes.rekeyed import resolve_rekeyed
from pgsluice.columnar.changes import RelationChanges
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.wire import ReplicaIdentity

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("big", pa.string())]
)


def row(id_: int, a: int | None = 0, big: Any = "big") -> dict[str, Any]:
    return {"id": id_, "a": a, "big": big}


def keys_of(table: pa.Table) -> list[int]:
    return [int(one["id"]) for one in table.to_pylist()]


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
            # A value that is stored out of line, and so may be left out, is never NULL.
            is_kept = old[1] is not None and draw(st.booleans())
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
    found = [row(key, *target[key]) for key in keys_of(result.source_keys) if key in target]
    result, _ = resolve_rekeyed(result, pa.Table.from_pylist(found, schema=SCHEMA))
    for key in keys_of(result.deletes):
        after.pop(key, None)
    absent = result.absent.get("big", np.zeros(len(result.rows), np.bool_))
    for i, one in enumerate(result.rows.to_pylist()):
        if one["id"] in target or result.inserted[i]:
            big = target[one["id"]][1] if absent[i] else one["big"]
            after[one["id"]] = (one["a"], big)
    return after


@settings(max_examples=examples(300))
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
