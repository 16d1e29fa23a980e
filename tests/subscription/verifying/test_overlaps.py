"""Versions of a history that overlap are counted by their keys."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.subscription.verifying import overlaps
from pgsluice.subscription.verifying.overlaps import overlapping_keys
from pgsluice.verification import DeltaRows

HISTORY = HistoryColumns("_")
Version = tuple[str, int, int | None]
SCHEMA = pa.schema(
    [("a", pa.string()), ("b", pa.int32()), ("_valid_from", pa.int64()), ("_valid_to", pa.int64())]
)


def counted(versions: Sequence[Version]) -> int:
    """What is found in a Delta table with these versions: the key's number, begin, and end."""
    columns = [[key[0] for key, *_ in versions], [int(key[1:]) for key, *_ in versions]]
    columns += [[begin for _, begin, _ in versions], [end for *_, end in versions]]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        table = pa.Table.from_arrays(
            [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)],
            schema=SCHEMA,
        )
        write_deltalake(folder, table)
        return overlapping_keys(DeltaRows(folder), ("a", "b"), HISTORY)


@pytest.mark.parametrize(
    ("versions", "count"),
    [
        ([], 0),
        ([("x1", 1, 5), ("x1", 5, None), ("x2", 3, 4), ("x2", 6, 7), ("y1", 1, None)], 0),
        ([("x1", 1, 6), ("x1", 5, None)], 1),
        ([("x1", 1, 4), ("x1", 1, 3), ("x2", 1, 9), ("x2", 2, 3), ("x2", 4, 5)], 2),
        ([("x1", 5, 3)], 1),
        ([("x1", 1, None), ("x1", 3, 4)], 1),
        ([("x1", 1, None), ("x1", 3, None), ("x1", 3, None)], 0),
        ([("x1", 1, 9), ("x1", 4, 4)], 0),
    ],
    ids=["none", "whole", "closed late", "closed", "inverted", "open early", "open", "no version"],
)
def test_keys_with_versions_at_the_same_position_are_counted(
    versions: list[Version], count: int
) -> None:
    """Not those that a copy ends, and none that no position shows."""
    assert counted(versions) == count


POSITIONS = range(8)


@settings(max_examples=examples(40), deadline=None)
@given(
    versions=st.lists(
        st.tuples(
            st.sampled_from(["x1", "x2", "y1"]),
            st.sampled_from(POSITIONS),
            st.none() | st.sampled_from(POSITIONS),
        ),
        max_size=12,
    ),
    in_a_part=st.sampled_from([1, 3, 100]),
)
def test_each_position_is_judged(versions: list[Version], in_a_part: int) -> None:
    wrong = 0
    for key in {key for key, *_ in versions}:
        begins = sorted(begin for each, begin, end in versions if each == key and end is None)
        ends = [*begins[1:], len(POSITIONS)][: len(begins)]
        spans = [(begin, end) for each, begin, end in versions if each == key and end is not None]
        spans += zip(begins, ends, strict=True)
        shown = [sum(begin <= at < end for begin, end in spans) for at in POSITIONS]
        wrong += max(shown) > 1 or any(begin > end for begin, end in spans)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(overlaps, "VERSIONS_A_PART", in_a_part)
        assert counted(versions) == wrong
