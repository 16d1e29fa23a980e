"""Keys that nothing proves to be unique: what their changes and the target's rows must show."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.errors import TableError
from pgsluice.testing.changes import ChangesBuilder

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32())])


def net(steps: str, *, is_complete: bool = True) -> NetChanges:
    """Net changes of steps such as ``+1 -1 =2 1>2``, each a transaction from 100 on."""
    t = ChangesBuilder(SCHEMA)
    for step in steps.split():
        if step[0] == "+":
            t.insert({"id": int(step[1:])})
        elif step[0] == "-":
            t.delete({"id": int(step[1:])})
        elif step[0] == "=":
            t.update({"id": int(step[1:])})
        else:
            old, new = map(int, step.split(">"))
            t.update({"id": new}, {"id": old})
        t.commit()
    return net_changes(
        [t.build()],
        schema=SCHEMA,
        key=("id",),
        is_complete=is_complete,
        is_key_proved=False,
    )


@pytest.mark.parametrize(
    ("steps", "count", "position"),
    [
        ("+1 +1", 1, 101),
        ("+1 =1 +1", 1, 102),
        ("=1 +1", 1, 101),
        ("-1 -1", 1, 101),
        ("-1 =1", 1, 101),
        ("+1 -1 -1", 1, 102),
        ("=1 2>1", 1, 101),
        ("2>1 3>1", 1, 101),
        ("+1 +2 +3 +2 +1", 2, 103),
        ("1>2 1>3", 1, 101),
    ],
)
def test_two_rows_of_one_key_in_a_batch(steps: str, count: int, position: int) -> None:
    with pytest.raises(TableError, match=r"the key \(.*\) of table .* is not unique") as refused:
        net(steps)
    assert (refused.value.count, refused.value.lsn) == (count, position)


@pytest.mark.parametrize(
    ("steps", "new", "known"),
    [
        ("+1 =1 -1 +1", {1}, set()),
        ("-1 +1", set(), {1}),
        ("=1 -1", set(), {1}),
        ("1>2 2>3", {2, 3}, {1}),
        ("1>3 2>1 3>2", {3}, {1, 2}),
        # A deferrable constraint allows it: 2 has two rows for a moment, if the target has it.
        ("1>2 2>1", {2}, {1}),
        ("", set(), set()),
    ],
)
def test_what_a_sink_is_asked(steps: str, new: set[int], known: set[int]) -> None:
    unproved = net(steps).unproved
    assert unproved is not None
    keys = unproved.keys.column("id").to_pylist()
    of = dict(zip(keys, unproved.is_new.tolist(), strict=True))
    assert of == {**dict.fromkeys(new, True), **dict.fromkeys(known, False)}


def test_rows_of_the_target() -> None:
    unproved = net("+1 =2 -3").unproved
    assert unproved is not None
    one, two, three = (unproved.keys.column("id").to_pylist().index(key) for key in (1, 2, 3))
    unproved.refuse_shared(np.array([two, three]), "t")
    for found, count, position in (
        ([one], 1, 100),
        ([two, two], 1, 101),
        ([three, three, two, three, one], 2, 100),
    ):
        with pytest.raises(TableError) as refused:
            unproved.refuse_shared(np.array(found), "t")
        assert (refused.value.count, refused.value.lsn) == (count, position)


def test_an_incomplete_stream_lacks_deletes() -> None:
    unproved = net("+1 +1 =2", is_complete=False).unproved
    assert unproved is not None
    assert not unproved.is_new.any()


def test_a_truncated_target_has_no_rows() -> None:
    t = ChangesBuilder(SCHEMA)
    t.truncate()
    t.insert({"id": 1})
    result = net_changes([t.build()], schema=SCHEMA, key=("id",), is_key_proved=False)
    assert result.unproved is None


def test_a_message_has_no_values() -> None:
    with pytest.raises(TableError) as refused:
        net("+4711 +4711")
    assert "4711" not in str(refused.value)
    assert "GROUP BY id HAVING count(*) > 1" in str(refused.value)
