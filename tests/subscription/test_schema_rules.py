"""What a change of a table's definition means for its target: every rule, and its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.errors import Remedy, TableError
from pgsluice.schema_rules.known import (
    ALL_ACTIONS,
    ColumnState,
    KnownColumns,
    SourceFingerprint,
    is_key_proved,
    known_columns,
    rows_of_partitions,
    sends_every_change,
)
from pgsluice.schema_rules.look import Look, emptied_leaves
from pgsluice.schema_rules.source import RULES, SUSPICIONS, reconcile_source
from pgsluice.schema_rules.target import (
    check_filter_column,
    check_key,
    check_key_columns,
    check_name,
    reconcile_column,
    reconcile_target,
)
from pgsluice.schema_rules.verdicts import ColumnsAdded, CopyAgain, ReplacePartitions, Same, Verify

Answer = Same | ColumnsAdded | CopyAgain | ReplacePartitions | Verify
INSERTS = frozenset({"insert", "truncate"})
ID, A = ColumnState("id", 1, 23), ColumnState("a", 1, 25)
COLUMNS = {1: ID, 2: A}
BEFORE = SourceFingerprint(
    filenodes={7: 100, 8: 100},
    columns=COLUMNS,
    actions=INSERTS,
    lacking=frozenset({"7:update", "7:delete", "8:update", "8:delete"}),
    rules="f1",
    sent=frozenset({7}),
    attnums=2,
    truncates=frozenset({7, 8}),
    types={"90:91": "5", "92:attributes": "23:-1"},
    listings=frozenset({"rel:60:5"}),
    attachments={7: 5, 8: 5},
    publications=frozenset({"70:5"}),
    row_types=frozenset({"80:5"}),
    kept_logged=frozenset({7, 8}),
    toast_tables={8: 501},
)
BELOW_NEW = {"filenodes": {7: 100, 8: 100, 9: 1}, "attachments": {7: 5, 8: 5, 9: 9, 10: 9}}
"""A new leaf (9) below a new partitioned table (10)."""
NEW_FILE = {7: 101, 8: 100}
ANEW = "table public.t has a partition that was attached, and perhaps detached before"
BOTH_7 = {7: {"b": "7"}, 8: {"b": "7"}}


def look(before: SourceFingerprint | None = None, **options: Any) -> Answer:
    """A look that finds what ``options`` name, fields of the fingerprint or of the look."""
    facts = {"server_version": 180000}
    of_look = {"server_version", "came_empty", "perhaps_empty", "has_some_leaves", "missing"}
    for name in (of_look | {"fresh", "created", "unseen"}) & options.keys():
        facts[name] = options.pop(name)
    return reconcile_source(Look("public.t", before or BEFORE, replace(BEFORE, **options), **facts))


def test_a_fingerprint_reads_back() -> None:
    assert SourceFingerprint.parse(BEFORE.to_text()) == BEFORE
    assert SourceFingerprint.parse("") is None
    assert SourceFingerprint.parse(replace(BEFORE, truncates=None).to_text()) == replace(
        BEFORE, truncates=None
    )


def test_every_leaf_has_to_send_all_actions() -> None:
    whole = replace(BEFORE, actions=ALL_ACTIONS, lacking=frozenset())
    assert sends_every_change(whole.to_text())
    assert not sends_every_change(BEFORE.to_text())
    assert not sends_every_change(replace(whole, lacking=frozenset({"8:delete"})).to_text())


def test_nothing_is_concluded_from_what_an_older_record_does_not_have() -> None:
    before = SourceFingerprint.parse('{"filenodes":{"7":100,"8":100},"columns":{},"actions":[]}')
    assert before is not None
    assert look(before) == Same()
    assert look(before, truncates=frozenset(), filenodes=NEW_FILE) == Same()  # VACUUM FULL


@pytest.mark.parametrize(
    ("numbers", "attnums", "expected"),
    [
        ({1: "id", 2: "a"}, 2, Same),
        ({1: "id", 2: "a", 3: "b"}, 3, ColumnsAdded),
        ({1: "id"}, 2, Same),  # dropped
        ({1: "id", 3: "b"}, 3, ColumnsAdded),  # dropped, and another added
        ({1: "id", 2: "a"}, 3, Same),  # added and dropped
        ({1: "id", 2: "b"}, 2, CopyAgain),  # renamed
        ({1: "id", 3: "a"}, 3, CopyAgain),  # dropped, and added again
        ({1: "id", 3: "A"}, 3, CopyAgain),  # a target does not tell them apart
        ({2: "id", 1: "a"}, 2, CopyAgain),  # names swapped
        ({1: "id", 2: "a", 4: "b"}, 4, ColumnsAdded),  # behind one that came and went
    ],
)
def test_a_column_is_its_number(
    numbers: dict[int, str], attnums: int, expected: type[Answer]
) -> None:
    columns = {number: ColumnState(name, 1) for number, name in numbers.items()}
    assert isinstance(look(columns=columns, attnums=attnums), expected)


def test_a_name_that_the_target_may_have_of_a_dropped_column() -> None:
    added = {"columns": {1: ID, 3: A}, "attnums": 3}
    dropped = replace(BEFORE, columns={1: ID}).following(BEFORE)
    assert dropped.gone == {2: "a"}
    assert isinstance(look(dropped, **added), CopyAgain)
    again = dropped.following(dropped)
    assert SourceFingerprint.parse(again.to_text()) == again == dropped
    other = {1: ID, 3: ColumnState("other", 9)}
    assert look(dropped, columns=other, attnums=3) == ColumnsAdded({"other": None})
    capital = {1: ID, 3: ColumnState("A", 9)}
    assert isinstance(look(dropped, columns=capital, attnums=3), CopyAgain)


def test_a_column_that_was_there_before_the_one_of_its_name_in_another_case_was_dropped() -> None:
    """The target keeps the dropped column, so the other one never got into it."""
    both = replace(BEFORE, columns={**COLUMNS, 3: A._replace(name="A")}, attnums=3)
    capital = {1: ID, 3: A._replace(name="A")}
    assert isinstance(look(both, columns=capital, attnums=3), CopyAgain)


def test_which_columns_changes_that_are_not_applied_may_have() -> None:
    """Those that were dropped after all applied changes."""
    three = {**COLUMNS, 3: ColumnState("b", 9)}
    first = replace(BEFORE, columns=three, attnums=3).following(BEFORE, {"b": None})
    assert (first.settled, first.open_numbers) == (0, set())
    caught_up = replace(BEFORE, attnums=3).following(first, is_caught_up=True)
    assert (caught_up.gone, caught_up.settled) == ({3: "b"}, 3)
    assert caught_up.open_numbers == {3}
    one = replace(BEFORE, columns={1: ID}, attnums=3)
    assert one.following(caught_up).open_numbers == {2, 3}
    assert one.following(caught_up, is_caught_up=True).open_numbers == {2}
    known = known_columns(one.following(caught_up, is_caught_up=True).to_text())
    assert known is not None
    assert [known.name_at_target(number) for number in (1, 2, 3, 4)] == ["id", "a", "b", None]
    assert [known.was_there(n, is_later=False) for n in (1, 2, 3, 4)] == [True, True, False, False]
    assert [known.was_dropped(n, is_later=False) for n in (1, 2, 3, 4)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert [known.was_dropped(n, is_later=True) for n in (1, 2, 3, 4)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (A, A, Same),  # VACUUM FULL
        (A, A._replace(version=50), Verify),  # TYPE text USING a || 'x', or GRANT beside it
        (A, A._replace(version=9, type_oid=23), CopyAgain),
        (A, A._replace(version=9, typmod=14), CopyAgain),
        (A, A._replace(version=50, is_sent=False), Same),  # SET EXPRESSION
    ],
)
def test_a_new_file(before: ColumnState, now: ColumnState, expected: type[Answer]) -> None:
    old = replace(BEFORE, columns={1: ID, 2: before})
    assert isinstance(look(old, columns={1: ID, 2: now}, filenodes=NEW_FILE), expected)
    harmless = look(old, columns={1: ID, 2: now._replace(type_oid=25, typmod=-1)})
    assert harmless == Same()  # without a new file, no value changed


TOAST = {7: 500, 8: 501}
GRANTED = {1: ID, 2: A._replace(version=50)}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"columns": GRANTED}, Same),  # VACUUM FULL
        ({"columns": GRANTED, "toast_tables": {7: 502, 8: 501}}, Verify),  # ALTER TABLE
        ({"columns": GRANTED, "toast_tables": {8: 501}}, Verify),
        ({"columns": GRANTED, "filenodes": {7: 101, 8: 101}, "toast_tables": {7: 500}}, Verify),
        ({"columns": {1: ID, 2: A._replace(version=50, type_oid=1043)}}, Same),
        (
            {
                "columns": {1: ID, 2: A._replace(version=50, type_oid=1043)},
                "toast_tables": {7: 502, 8: 501},
            },
            CopyAgain,
        ),
        ({"kept_logged": frozenset()}, Same),
        ({"kept_logged": frozenset(), "toast_tables": {7: 502, 8: 501}}, Verify),
        ({"truncates": frozenset()}, Verify),  # TRUNCATE keeps it, too
    ],
)
def test_no_alter_table_has_rewritten_a_table_with_the_same_toast_table(
    now: dict[str, Any], expected: type[Answer]
) -> None:
    before = replace(BEFORE, toast_tables=TOAST)
    assert isinstance(
        look(before, **{"filenodes": NEW_FILE, "toast_tables": TOAST, **now}), expected
    )


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({}, Same),  # TRUNCATE, which the stream has
        ({"truncates": frozenset()}, Verify),  # via root, or not published
        ({"truncates": frozenset({8})}, Verify),
        ({"truncates": None, "server_version": 100023}, Verify),
        ({"server_version": 100023}, Verify),
        ({"kept_logged": frozenset({8})}, Verify),  # it may have been UNLOGGED
        ({"kept_logged": None}, Same),
    ],
)
def test_a_truncate_that_is_not_sent(now: dict[str, Any], expected: type[Answer]) -> None:
    assert isinstance(look(filenodes=NEW_FILE, **now), expected)
    assert look(truncates=now.get("truncates", frozenset())) == Same()


@pytest.mark.parametrize(
    ("column", "now", "expected"),
    [
        (ColumnState("b", 9), {}, ColumnsAdded({"b": None})),
        (ColumnState("b", 9), {"missing": BOTH_7}, ColumnsAdded({"b": "7"})),  # DEFAULT 7
        (ColumnState("b", 9), {"missing": {7: {"b": "7"}, 8: {"b": "8"}}}, CopyAgain),
        (ColumnState("b", 9), {"missing": {7: {"b": "7"}}}, CopyAgain),  # VACUUM FULL of 8
        (ColumnState("b", 9), {"missing": {7: {"z": "7"}}}, ColumnsAdded({"b": None})),
        # TRUNCATE: the server forgets the value in a table that it rewrites.
        (
            ColumnState("b", 9),
            {"missing": BOTH_7, "filenodes": NEW_FILE},
            ColumnsAdded({"b": "7"}),
        ),
        (
            ColumnState("b", 9),
            {"missing": BOTH_7, "filenodes": NEW_FILE, "truncates": frozenset({8})},
            CopyAgain,
        ),
        (ColumnState("b", 9), {"missing": {8: {"b": "7"}}, "filenodes": NEW_FILE}, CopyAgain),
        (ColumnState("b", 9), {"filenodes": NEW_FILE}, CopyAgain),  # DEFAULT random()
        (ColumnState("b", 9, is_sent=False), {"missing": BOTH_7}, Same()),
        # A partition that was made with the column has it in all of its rows.
        (
            ColumnState("b", 9),
            {
                "missing": BOTH_7,
                "filenodes": {**BEFORE.filenodes, 9: 1},
                "came_empty": {9},
            },
            ColumnsAdded({"b": "7"}),
        ),
    ],
)
def test_an_added_column(
    column: ColumnState, now: dict[str, Any], expected: Answer | type[Answer]
) -> None:
    verdict = look(columns={**COLUMNS, 3: column}, attnums=3, **now)
    assert isinstance(verdict, expected) if isinstance(expected, type) else verdict == expected


def test_what_a_look_knows_goes_on_with_later_looks() -> None:
    now = replace(BEFORE, columns={**COLUMNS, 3: ColumnState("b", 9, 23)}, attnums=3, key=("id",))
    fingerprint = now.following(BEFORE, {"b": "7"})
    known = known_columns(fingerprint.to_text())
    assert known == KnownColumns(
        {"id": (23, -1), "a": (25, -1), "b": (23, -1)},
        {"b": "7"},
        ("id",),
        {1: "id", 2: "a", 3: "b"},
        attnums=3,
    )
    vacuumed = replace(now, filenodes=NEW_FILE).following(fingerprint)
    assert vacuumed.added == {"b": "7"}
    dropped = BEFORE.following(vacuumed)
    assert (dropped.added, dropped.gone) == ({"b": "7"}, {3: "b"})
    assert known_columns("") is None


NUMERIC, TEXT = 1700, 25


def _numeric(precision: int, scale: int = 2) -> ColumnState:
    return ColumnState("a", 2, NUMERIC, (precision << 16 | scale) + 4)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (A._replace(type_oid=1043, typmod=14), A._replace(type_oid=1043, typmod=24), Same),
        (A._replace(type_oid=1043, typmod=14), A, Same),  # text
        (A, A._replace(type_oid=1043), Same),
        (_numeric(6), _numeric(10), Same),
        (_numeric(6), _numeric(38), Same),
        (_numeric(6), _numeric(39), CopyAgain),  # text at the target
        (_numeric(39), _numeric(50), Same),
        (_numeric(6), _numeric(6)._replace(typmod=-1), CopyAgain),
        (_numeric(39), _numeric(6)._replace(typmod=-1), Same),
        (A._replace(type_oid=1114), A._replace(type_oid=1184), CopyAgain),  # timestamptz
        (A._replace(type_oid=650), A._replace(type_oid=869), CopyAgain),  # cidr, inet
        (A._replace(type_oid=1114, typmod=3), A._replace(type_oid=1114, typmod=6), Same),
        (A._replace(type_oid=0), A, Same),  # an older record
        (_numeric(6), _numeric(39)._replace(is_sent=False), Same),
    ],
)
def test_another_type_with_the_same_file(
    before: ColumnState, now: ColumnState, expected: type[Answer]
) -> None:
    old = replace(BEFORE, columns={1: ID, 2: before})
    assert isinstance(look(old, columns={1: ID, 2: now}), expected)


def test_another_key() -> None:
    before = replace(BEFORE, key=("id",))
    assert isinstance(look(before, key=("id", "a")), CopyAgain)
    assert isinstance(look(before, key=()), CopyAgain)
    assert look(before, key=("id",)) == Same()
    assert look(replace(BEFORE, key=("id", "a")), key=("a", "id")) == Same()
    assert look(key=("id",)) == Same()  # an older record does not know it


@pytest.mark.parametrize(
    ("now", "empty", "expected"),
    [
        ({"actions": INSERTS | {"update"}}, set(), CopyAgain),
        ({"actions": frozenset({"insert"})}, set(), Same),
        ({"lacking": frozenset({"8:update", "8:delete"})}, set(), CopyAgain),
        ({"lacking": BEFORE.lacking | {"9:update"}}, set(), Same),
        ({"rules": "f2"}, set(), CopyAgain),
        ({"sent": frozenset({7, 8})}, set(), CopyAgain),  # what changed in 8 did not come
        ({"sent": frozenset()}, set(), Same),
        ({"filenodes": {7: 100}}, set(), CopyAgain),  # detached, or dropped
        ({"filenodes": {7: 100, 8: 100, 9: 1}}, set(), CopyAgain),  # attached with rows
        ({"filenodes": {7: 100, 8: 100, 9: 1}}, {9}, Same),
        ({"filenodes": {7: 100, 8: 100, 9: 1, 10: 1}}, {9}, CopyAgain),
        ({"filenodes": {7: 100, 8: 100, 9: 1}, "sent": frozenset({7, 9})}, {9}, Same),
        ({"listings": frozenset({"rel:61:9"})}, set(), CopyAgain),  # out and in again
        ({"listings": frozenset({"rel:60:5", "namespace:62:9"})}, set(), Same),
        ({"attachments": {7: 5, 8: 9}}, set(), CopyAgain),  # detached and attached
        ({"attachments": {7: 5, 8: 5, 9: 9}}, set(), Same),
        (BELOW_NEW, {9}, CopyAgain),
        (BELOW_NEW, {9, 10}, Same),
        ({"types": {"90:91": "9", "92:attributes": "23:-1"}}, set(), CopyAgain),  # RENAME VALUE
        ({"types": {**BEFORE.types, "90:99": "9"}}, set(), Same),  # ADD VALUE
        ({"types": {"90:91": "5", "92:attributes": "23:-1 25:-1"}}, set(), CopyAgain),
        ({"types": {"90:91": "5"}}, set(), Same),  # the column was dropped
        ({"publications": frozenset({"70:9"})}, set(), Verify),  # SET
        ({"publications": frozenset({"70:5", "71:5"})}, set(), Same),
        ({"row_types": frozenset({"80:9"})}, set(), Verify),  # SET SCHEMA there and back
        ({"row_types": frozenset({"80:5", "81:9"})}, set(), Same),
    ],
)
def test_publications_partitions_and_types(
    now: dict[str, Any], empty: set[int], expected: type[Answer]
) -> None:
    assert isinstance(look(came_empty=empty, **now), expected)


def test_a_new_partition_of_which_nobody_knows_whether_it_came_with_rows() -> None:
    more = {**BEFORE.filenodes, 9: 1, 10: 1}
    assert isinstance(look(filenodes=more, came_empty={9}, perhaps_empty={10}), Verify)
    assert isinstance(look(filenodes=more, perhaps_empty={10}), CopyAgain)
    keyed = replace(BEFORE, key=("id",))
    loaded = look(keyed, filenodes=more, key=("id",), came_empty={9}, perhaps_empty={10})
    assert loaded == ReplacePartitions(frozenset({10}))
    below = {**BELOW_NEW, "key": ("id",), "came_empty": {9}}
    assert look(keyed, **below) == ReplacePartitions(frozenset({9})), "the table above came later"
    columns = {**COLUMNS, 3: ColumnState("b", 9)}
    now = {"filenodes": more, "columns": columns, "attnums": 3, "missing": BOTH_7}
    assert isinstance(look(came_empty={9}, perhaps_empty={10}, **now), CopyAgain)


def test_partitions_with_rows_are_loaded_alone_if_they_are_all_that_is_new() -> None:
    keyed = replace(BEFORE, key=("id",))
    more = {"filenodes": {**BEFORE.filenodes, 9: 1, 11: 1}, "key": ("id",)}
    assert look(keyed, came_empty={11}, **more) == ReplacePartitions(frozenset({9}))
    assert look(keyed, **BELOW_NEW, key=("id",)) == ReplacePartitions(frozenset({9}))
    assert look(keyed, perhaps_empty={9}, **more) == ReplacePartitions(frozenset({9, 11}))
    others = (
        {"filenodes": {8: 100, 9: 1}},  # 7 is gone, and nobody knows its bound
        {"rules": "f2"},
        {"key": ("id", "a")},
        {"attachments": {7: 5, 8: 9}},
        {"publications": frozenset({"70:9"})},
        {"columns": {**COLUMNS, 3: ColumnState("b", 9)}, "attnums": 3, "missing": BOTH_7},
        {"has_some_leaves": True},
    )
    for other in others:
        assert isinstance(look(keyed, **{**more, **other}), CopyAgain), other
    assert isinstance(look(replace(keyed, key=()), **{**more, "key": ()}), CopyAgain)


def test_rows_of_partitions_that_are_gone_are_replaced_if_their_bounds_are_known() -> None:
    of_8 = frozenset({"8:update", "8:delete"})
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    now: dict[str, Any] = {"filenodes": {8: 100}, "key": ("id",), "lacking": of_8}
    assert look(known, **now) == ReplacePartitions(gone={7: ("id < 9",)})
    assert look(known, **{**now, "filenodes": {}}) == ReplacePartitions(
        gone={7: ("id < 9",), 8: ("id >= 9",)}
    )
    came = {**now, "filenodes": {8: 100, 9: 1, 10: 1}}
    assert look(known, came_empty={10}, **came) == ReplacePartitions({9}, {7: ("id < 9",)})
    assert look(known, came_empty={9, 10}, **came) == ReplacePartitions(gone={7: ("id < 9",)})
    truncated = {"key": ("id",), "filenodes": {7: 101, 8: 100}, "truncates": frozenset({8})}
    assert look(known, fresh={7}, **truncated) == ReplacePartitions(gone={7: ("id < 9",)})
    assert isinstance(look(known, **truncated), Verify)  # VACUUM FULL, more likely
    assert look(known, key=("id",), filenodes={7: 100, 8: 101}, fresh={8}) == Same()  # it is sent
    for other in ({"rules": "f2"}, {"key": ()}, {"attachments": {7: 5, 8: 9}}):
        assert isinstance(look(known, **{**now, **other}), CopyAgain), other


def test_rows_of_a_partition_that_was_detached_for_a_while_are_replaced() -> None:
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    now: dict[str, Any] = {"key": ("id",), "bounds": known.bounds, "attachments": {7: 5, 8: 9}}
    assert look(known, **now) == ReplacePartitions(gone={8: ("id >= 9",)}, verify=ANEW)
    elsewhere = {**now, "bounds": {7: "id < 9", 8: "id >= 99"}}
    both = {8: ("id >= 9", "id >= 99")}
    assert look(known, **elsewhere) == ReplacePartitions(gone=both, verify=ANEW)
    hashed = {**now, "bounds": {7: "id < 9"}}
    assert isinstance(look(known, **hashed), CopyAgain)


def test_rows_of_a_mid_level_that_was_detached_for_a_while_are_replaced() -> None:
    """It may have lost leaves meanwhile, and got others."""
    whole: dict[str, Any] = {"key": ("id",), "attachments": {7: 5, 8: 5, 20: 5}}
    bounds = {7: "id < 9", 8: "id >= 9 AND id < 20", 20: "id >= 9"}
    known = replace(BEFORE, **whole, bounds=bounds, parents={8: 20})
    anew = {**whole, "bounds": bounds, "parents": {8: 20}, "attachments": {7: 5, 8: 5, 20: 9}}
    rows = ("id >= 9",)
    assert look(known, **anew) == ReplacePartitions(gone={8: rows, 20: rows}, verify=ANEW)
    moved = {7: "id < 9", 9: "id > 5", 20: "id > 5"}
    files = {"filenodes": {7: 100, 9: 1}, "lacking": frozenset({"7:update", "7:delete"})}
    found = look(known, **{**anew, **files, "bounds": moved, "parents": {9: 20}})
    assert isinstance(found, ReplacePartitions)
    assert found.came == {9}
    assert {bound for bounds in found.gone.values() for bound in bounds} == {
        "id >= 9 AND id < 20", "id >= 9", "id > 5",
    }  # fmt: skip
    assert found.gone.keys() == {8, 9, 20}
    assert isinstance(look(replace(known, bounds={7: "id < 9"}), **anew), CopyAgain)


def test_leaves_that_only_the_stream_has_brought() -> None:
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    now: dict[str, Any] = {"key": ("id",), "bounds": known.bounds}
    assert look(known, **now, unseen={9: "id > 50"}) == ReplacePartitions(gone={9: ("id > 50",)})
    assert isinstance(look(known, **now, unseen={9: None}), CopyAgain)
    assert isinstance(look(replace(known, key=()), unseen={9: "id > 50"}, key=()), CopyAgain)
    there = {
        **now,
        "filenodes": {**BEFORE.filenodes, 9: 1},
        "bounds": {**known.bounds, 9: "id > 70"},
        "came_empty": {9},
    }
    assert look(known, **there, unseen={9: None}, created={9}) == Same()
    both = {9: ("id > 70", "id > 50")}
    assert look(known, **there, unseen={9: "id > 50"}) == ReplacePartitions(gone=both)
    found = look(known, **there, unseen={9: None})
    assert isinstance(found, ReplacePartitions)
    assert found.gone == {9: ("id > 70",)}
    assert "perhaps detached" in found.verify
    above = {**there, "attachments": {**BEFORE.attachments, 20: 5}, "unseen": {9: "id > 50"}}
    moved = look(known, **above, created={9})
    assert moved == ReplacePartitions({9}, both), "the table above may have been elsewhere"
    above["came_empty"] = {9, 20}
    assert look(known, **above, created={9, 20}) == Same()


def test_leaves_that_are_empty_may_have_had_rows_before_the_look() -> None:
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    files = {**BEFORE.filenodes, 9: 1}
    now = replace(known, filenodes=files, bounds={**known.bounds, 9: "id > 70"})
    found = Look("public.t", known, now, server_version=180000, came_empty={9})
    assert reconcile_source(found) == Same()
    assert emptied_leaves(replace(found, created={9})) == set(), "it was attached once"
    above = replace(now, attachments={**known.attachments, 20: 5})
    below = replace(found, now=above, came_empty={9, 20}, created={9})
    assert emptied_leaves(below) == {9}, "the table above it may have been elsewhere"
    known = now.following(known, looked_at=500, emptied=emptied_leaves(found))
    later = now.following(known, looked_at=900)
    assert later.emptied == {9: 500}
    brought = Look("public.t", known, now, 180000, created={9}, unseen={9: None})
    assert reconcile_source(brought) == ReplacePartitions(gone={9: ("id > 70",)}, verify=ANEW)
    gone = replace(known, filenodes=BEFORE.filenodes).following(known, looked_at=950)
    assert not gone.emptied


def test_a_partition_that_came_while_others_were_replaced() -> None:
    """A later look knows that it has had one bound if it was made as a partition."""
    before = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    bounds = {**before.bounds, 9: "id > 70"}
    attachments = {**BEFORE.attachments, 9: 5}
    files = {**BEFORE.filenodes, 9: 1}
    now = replace(before, filenodes=files, attachments=attachments, bounds=bounds)
    aside = before.with_leaves_of(now)
    rows = {9: ("id > 70",)}
    found = Look("public.t", aside, now, 180000)
    assert reconcile_source(found) == ReplacePartitions(gone=rows, verify=ANEW)
    assert reconcile_source(replace(found, created={9})) == ReplacePartitions(gone=rows)


def test_the_rows_that_a_partition_may_have_had_at_any_time() -> None:
    """Other partitions have decided what a default one (8, below 20) and those below it had."""
    below = {"parents": {8: 20, 9: 21, 21: 20}, "attachments": {7: 5, 20: 5, 21: 5}}
    bounds = {7: "id < 9", 8: "id > 50", 9: "id = 30", 20: "id >= 9", 21: "NOT (id > 50)"}
    files = {7: 100, 8: 100, 9: 100}
    known = replace(BEFORE, **below, filenodes=files, bounds=bounds, fixed=frozenset({7, 20}))
    text = known.to_text()
    assert rows_of_partitions(text, {7}) == {7: ("id < 9",)}
    assert rows_of_partitions(text, {8, 9}) == {8: ("id >= 9",), 9: ("id >= 9",)}
    assert rows_of_partitions(text, {99}) == {99: ("false",)}, "it has come and gone"
    of_root = replace(known, fixed=frozenset({7}))
    assert rows_of_partitions(of_root.to_text(), {7, 8}) is None, "all rows"
    assert rows_of_partitions(replace(known, fixed=None).to_text(), {7}) is None
    assert rows_of_partitions(text, ()) is None
    assert rows_of_partitions("", {7}) is None


def test_rows_of_a_partition_that_was_not_sent_for_a_while_are_replaced() -> None:
    """Before 13, a new partition is sent only when capture has put it into the publication."""
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9", 8: "id >= 9"})
    now: dict[str, Any] = {"key": ("id",), "bounds": known.bounds, "sent": frozenset({7, 8})}
    assert look(known, **now) == ReplacePartitions(gone={8: ("id >= 9",)})
    assert isinstance(look(known, **{**now, "rules": "f2"}), CopyAgain)


def test_what_lists_a_partition_goes_with_it() -> None:
    gone: dict[str, Any] = {
        "key": ("id",), "filenodes": {8: 100}, "lacking": frozenset({"8:update", "8:delete"}),
        "attachments": {8: 5}, "listings": frozenset(), "row_types": frozenset(),
    }  # fmt: skip
    known = replace(BEFORE, key=("id",), bounds={7: "id < 9"})
    assert isinstance(look(known, **gone), CopyAgain), "it listed the whole table, or another leaf"
    of_7 = replace(known, of_partitions={7: ("rel:60:5", "80:5")})
    assert look(of_7, **gone) == ReplacePartitions(gone={7: ("id < 9",)})
    still = {**gone, "attachments": {7: 5, 8: 5}, "filenodes": {7: 100, 8: 100}}
    assert isinstance(look(of_7, **still), CopyAgain), "it was out of the publication"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("t_pkey", "t_pkey", Same),
        ("t_pkey", "t_other", Same),
        ("t_pkey", "", Verify),
        (None, "", Verify),  # earlier versions did not ask
        (None, "t_pkey", Same),
        ("", "", Same),
        ("", "t_pkey", Same),
    ],
)
def test_what_proves_the_key(before: str | None, now: str, expected: type[Answer]) -> None:
    old = replace(BEFORE, key=("id",), key_index=before)
    assert isinstance(look(old, key=("id",), key_index=now), expected)


def test_a_proof_counts_for_changes_after_the_look_that_found_it() -> None:
    copied = replace(BEFORE, key=("id",), key_index="")
    proved = replace(copied, key_index="t_pkey")
    found = proved.following(copied, looked_at=500)
    later = proved.following(found, looked_at=900)
    for fingerprint in (found, later):
        text = fingerprint.to_text()
        assert [is_key_proved(text, after) for after in (0, 499, 500)] == [False, False, True]
    assert not is_key_proved(copied.to_text(), 10**9)
    assert is_key_proved(proved.to_text(), 0)
    assert is_key_proved(BEFORE.to_text(), 0)  # of an earlier version
    assert is_key_proved("", 0)


def test_a_column_that_is_sent_from_now_on() -> None:
    unsent = replace(BEFORE, columns={1: ID, 2: A._replace(is_sent=False)})
    assert isinstance(look(unsent), CopyAgain)  # DROP EXPRESSION
    assert look(columns=unsent.columns) == Same()


def test_a_table_of_some_leaves_cannot_know_a_new_one_to_be_empty() -> None:
    more = {**BEFORE.filenodes, 9: 1}
    assert isinstance(look(filenodes=more, came_empty={9}, has_some_leaves=True), CopyAgain)
    assert look(has_some_leaves=True) == Same()


def test_every_rule_says_what_is_the_matter() -> None:
    rules = RULES + SUSPICIONS
    assert len({matter for _, matter in rules}) == len(rules)
    verdict = look(filenodes=NEW_FILE, columns={1: ID, 2: A._replace(type_oid=23)})
    assert verdict == CopyAgain("table public.t was rewritten by an ALTER TABLE")


# Targets

ID_FIELD, A_FIELD = pa.field("id", pa.int32(), nullable=False), pa.field("a", pa.string())
TARGET = pa.schema([ID_FIELD, A_FIELD])
B = pa.field("b", pa.int64())


@contextmanager
def refusal(remedy: Remedy, why: str) -> Iterator[pytest.ExceptionInfo[TableError]]:
    """A context that has to end with this recovery action for table ``t``."""
    with pytest.raises(TableError, match=why) as caught:
        yield caught
    assert (caught.value.remedy, caught.value.table) == (remedy, "t")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([ID_FIELD, A_FIELD], ()),
        ([ID_FIELD, pa.field("a", pa.large_string())], ()),
        ([ID_FIELD, pa.field("a", pa.binary())], "a"),
        ([pa.field("id", pa.int64()), A_FIELD], "id"),
        ([ID_FIELD, A_FIELD, B], (B,)),
        ([ID_FIELD], ()),
        ([A_FIELD], "id"),
    ],
)
def test_columns(now: list[pa.Field], expected: tuple[pa.Field, ...] | str) -> None:
    if isinstance(expected, str):
        with refusal(Remedy.PARK, f"'{expected}'") as caught:
            reconcile_target("t", TARGET, pa.schema(now), key=("id",))
        assert caught.value.column == expected
        assert caught.value.hint is not None
    else:
        assert reconcile_target("t", TARGET, pa.schema(now), key=("id",)) == expected


KNOWN = KnownColumns({"b": (20, -1), "n": (1700, 99)}, {"gone": "7"}, ("id",))
SMALL, LARGE = pa.field("n", pa.decimal128(6, 2)), pa.field("n", pa.decimal128(10, 2))
GONE = B.with_name("gone")


@pytest.mark.parametrize(
    ("target", "now", "source_type", "known", "expected"),
    [
        (None, B, (20, -1), KNOWN, B),
        (None, B.with_nullable(False), (20, -1), None, B),  # never copied; older rows have NULL
        (None, B.with_name("new"), (20, -1), KNOWN, Remedy.LOOK),
        (None, GONE, (20, -1), KNOWN, GONE),  # dropped before its changes came
        (B, B, (20, -1), None, B),
        (LARGE, SMALL, (1700, 5), KNOWN, LARGE),  # from before it was wider
        (SMALL, LARGE, (1700, 99), KNOWN, LARGE),
        (SMALL, LARGE, (1700, 98), KNOWN, Remedy.LOOK),  # the look found yet another type
        (SMALL, LARGE, (1700, 99), None, Remedy.LOOK),
        (SMALL, pa.field("n", pa.decimal128(10, 3)), (1700, 99), KNOWN, Remedy.LOOK),
        (B, pa.field("b", pa.string()), (20, -1), KNOWN, Remedy.LOOK),
    ],
)
def test_a_column_of_a_batch(
    target: pa.Field | None,
    now: pa.Field,
    source_type: tuple[int, int],
    known: KnownColumns | None,
    expected: pa.Field | Remedy,
) -> None:
    if isinstance(expected, Remedy):
        with refusal(expected, "column"):
            reconcile_column("t", target, now, source_type, known)
    else:
        assert reconcile_column("t", target, now, source_type, known) == expected


def test_a_column_that_was_dropped_after_the_batch() -> None:
    text = pa.field("b", pa.string())  # as which a type that is gone is read
    assert reconcile_column("t", B, text, (90001, -1), KNOWN, is_dropped=True) is None
    assert reconcile_column("t", B, B, (20, -1), KNOWN, is_dropped=True) == B


def test_a_column_that_was_dropped_after_the_metadata_of_its_batch_was_read() -> None:
    """ALTER TYPE, an update, and DROP, of which capture saw the first and a refresh all three."""
    known = replace(KNOWN, types={"id": (23, -1)}, names={1: "id"}, gone={2: "n"})
    assert reconcile_column("t", SMALL, LARGE, (1700, 99), known) is None
    again = replace(known, names={1: "id", 3: "n"})  # added again, which a refresh has to say
    with refusal(Remedy.LOOK, "changed its type"):
        reconcile_column("t", SMALL, LARGE, (1700, 99), again)


def test_names() -> None:
    check_name("t", "t")
    with refusal(Remedy.LOOK, "table t is now called u"):
        check_name("t", "u")


def test_keys() -> None:
    check_key("t", ("id",), ("id",))
    check_key("t", ("id", "a"), ("a", "id"))
    check_key("t", None, ("id",))
    with refusal(Remedy.LOOK, "the key of table t changed"):
        check_key("t", ("id",), ("id", "a"))
    check_key_columns("t", TARGET, ("id",))
    with refusal(Remedy.COPY, "allows NULL in the key column 'a'"):
        check_key_columns("t", TARGET, ("id", "a"))
    with refusal(Remedy.PARK, "lacks key column 'id'"):
        reconcile_target("t", pa.schema([A_FIELD]), pa.schema([A_FIELD, ID_FIELD]), key=("id",))


def test_a_filter_reads_the_type_that_it_was_made_for() -> None:
    check_filter_column("t", "a", planned_oid=23, type_oid=23)
    with refusal(Remedy.PARK, "column 'a' of table t, which the row filter reads, changed"):
        check_filter_column("t", "a", planned_oid=23, type_oid=20)
