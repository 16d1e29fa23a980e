"""What a change of a table's definition means for its target: every rule, and its neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.errors import Remedy, TableError
from pgsluice.schema_rules import (
    AddColumns,
    CopyAgain,
    Look,
    Park,
    Same,
    SourceFingerprint,
    Verdict,
    raise_unless_possible,
    reconcile_filter_column,
    reconcile_key,
    reconcile_key_columns,
    reconcile_source,
    reconcile_target,
)
from pgsluice.schema_rules.source import RULES

INSERTS = frozenset({"insert", "truncate"})
BEFORE = SourceFingerprint(
    {7: 100, 8: 100}, {"id": 1, "a": 1}, {"id": 1, "a": 2}, INSERTS, "f1", frozenset({7})
)


def look(*, version: int = 180000, empty: set[int] | None = None, **now: Any) -> Verdict:
    changed = replace(BEFORE, **now)
    return reconcile_source(Look("public.t", BEFORE, changed, version, empty or set()))


def test_a_fingerprint_reads_back() -> None:
    assert SourceFingerprint.parse(BEFORE.to_text()) == BEFORE
    assert SourceFingerprint.parse("") is None


def test_nothing_is_concluded_from_what_an_older_record_does_not_have() -> None:
    old = SourceFingerprint.parse('{"filenodes":{"7":100,"8":100},"columns":{"id":1,"a":1}}')
    assert old is not None
    assert reconcile_source(Look("public.t", old, BEFORE, 180000)) == Same()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"id": 1, "a": 2}, Same),
        ({"id": 1, "a": 2, "b": 3}, Same),  # added
        ({"id": 1}, Same),  # dropped
        ({"id": 1, "b": 3}, Same),  # dropped, and another added
        ({"id": 1, "b": 2}, CopyAgain),  # renamed
        ({"id": 1, "a": 3}, CopyAgain),  # dropped, and added again
        ({"id": 2, "a": 1}, CopyAgain),  # names swapped
    ],
)
def test_a_column_is_its_number(numbers: dict[str, int], expected: type[Verdict]) -> None:
    assert isinstance(look(columns=dict.fromkeys(numbers, 1), numbers=numbers), expected)


@pytest.mark.parametrize(
    ("file", "definition", "version", "expected"),
    [
        (101, 2, 180000, Park),  # ALTER TABLE ... TYPE int USING a * 2
        (101, 1, 180000, Same),  # VACUUM FULL
        (100, 2, 180000, Same),  # a longer varchar
        (101, 1, 110000, Same),
        (101, 1, 100023, CopyAgain),  # may be a TRUNCATE, which 10 does not send
        (101, 2, 100023, Park),
    ],
)
def test_a_new_file(file: int, definition: int, version: int, expected: type[Verdict]) -> None:
    verdict = look(version=version, filenodes={7: file, 8: 100}, columns={"id": 1, "a": definition})
    assert isinstance(verdict, expected)


@pytest.mark.parametrize(
    ("now", "empty", "expected"),
    [
        ({"actions": INSERTS | {"update"}}, set(), CopyAgain),
        ({"actions": frozenset({"insert"})}, set(), Same),
        ({"rules": "f2"}, set(), CopyAgain),
        ({"sent": frozenset({7, 8})}, set(), CopyAgain),  # what changed in 8 did not come
        ({"sent": frozenset()}, set(), Same),
        ({"filenodes": {7: 100}}, set(), CopyAgain),  # detached, or dropped
        ({"filenodes": {7: 100, 8: 100, 9: 1}}, set(), CopyAgain),  # attached with rows
        ({"filenodes": {7: 100, 8: 100, 9: 1}}, {9}, Same),
        ({"filenodes": {7: 100, 8: 100, 9: 1, 10: 1}}, {9}, CopyAgain),
        ({"filenodes": {7: 100, 8: 100, 9: 1}, "sent": frozenset({7, 9})}, {9}, Same),
    ],
)
def test_publications_and_partitions(
    now: dict[str, Any], empty: set[int], expected: type[Verdict]
) -> None:
    assert isinstance(look(empty=empty, **now), expected)


def test_a_table_of_some_leaves_cannot_know_a_new_one_to_be_empty() -> None:
    now = replace(BEFORE, filenodes={**BEFORE.filenodes, 9: 1})
    some = Look("public.t", BEFORE, now, 180000, {9}, has_some_leaves=True)
    assert isinstance(reconcile_source(some), CopyAgain)
    assert reconcile_source(replace(some, now=BEFORE)) == Same()


def test_every_rule_says_what_is_the_matter() -> None:
    assert len({matter for _, _, matter in RULES}) == len(RULES)
    verdict = look(filenodes={7: 101, 8: 100}, columns={"id": 1, "a": 2})
    assert isinstance(verdict, Park)
    assert verdict.why.startswith("public.t was rewritten by an ALTER TABLE")
    assert verdict.hint == "copy the table again: pgsluice copy CONFIG public.t"


# Targets

ID, A = pa.field("id", pa.int32(), nullable=False), pa.field("a", pa.string())
TARGET = pa.schema([ID, A])
B = pa.field("b", pa.int64())


@pytest.mark.parametrize(
    ("now", "backfilled", "expected"),
    [
        ([ID, A], set(), Same()),
        ([ID, pa.field("a", pa.large_string())], set(), Same()),
        ([ID, pa.field("a", pa.binary())], set(), "a"),
        ([pa.field("id", pa.int64()), A], set(), "id"),
        ([ID, A, B], set(), AddColumns((B,))),
        ([ID, A, B], {"b"}, "b"),
        ([ID], set(), Same()),
        ([ID], {"a"}, "a"),
        ([A], set(), "id"),
        ([ID, A], {"a", "id"}, Same()),
    ],
)
def test_columns(now: list[pa.Field], backfilled: set[str], expected: Verdict | str) -> None:
    verdict = reconcile_target("t", TARGET, pa.schema(now), key=("id",), backfilled=backfilled)
    if isinstance(expected, str):
        assert isinstance(verdict, Park)
        assert verdict.column == expected
    else:
        assert verdict == expected


def test_keys() -> None:
    assert reconcile_key("t", ("id",), ("id",)) == Same()
    assert isinstance(reconcile_key("t", ("id",), ("id", "a")), Park)
    assert reconcile_key_columns("t", TARGET, ("id",)) == Same()
    assert isinstance(reconcile_key_columns("t", TARGET, ("id", "a")), Park)
    added = pa.schema([A])
    verdict = reconcile_target("t", added, pa.schema([A, ID]), key=("id",), backfilled=())
    assert isinstance(verdict, Park)


def test_a_filter_reads_the_type_that_it_was_made_for() -> None:
    assert reconcile_filter_column("t", "a", planned_oid=23, type_oid=23) == Same()
    verdict = reconcile_filter_column("t", "a", planned_oid=23, type_oid=20)
    assert isinstance(verdict, Park)
    assert verdict.why == "t: the column 'a' of the row filter changed its type"


@pytest.mark.parametrize(
    ("verdict", "remedy"),
    [(Park("why", "do", "a"), Remedy.PARK), (CopyAgain("why"), Remedy.COPY)],
)
def test_a_task_raises_what_the_target_cannot_take(verdict: Verdict, remedy: Remedy) -> None:
    with pytest.raises(TableError, match="why") as caught:
        raise_unless_possible(verdict, "t")
    assert (caught.value.remedy, caught.value.table) == (remedy, "t")
    assert raise_unless_possible(AddColumns((B,)), "t") == (B,)
