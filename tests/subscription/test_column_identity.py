"""Which numbers columns of a Relation message have, and how the target calls them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.databases import MakeDatabase
from tests.support.spools import OID, relation

from pgsluice.columnar import Definition
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import ColumnFacts, DroppedColumn, RelationFacts
from pgsluice.schema_rules.alignment import STORAGE, Slot, alignments
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.subscription.batches.tasks.column_identity import identified

INT, TEXT = 23, 25
DROPPED_INT, DROPPED_TEXT = Slot("", storage=(4, "i")), Slot("", storage=(-1, "i"))


def there(name: str, type_oid: int = INT) -> Slot:
    return Slot(name, type_oid, was_there=True)


def came(name: str, type_oid: int = INT) -> Slot:
    return Slot(name, type_oid)


def unsent(name: str, type_oid: int = INT) -> Slot:
    return Slot(name, type_oid, was_there=True, is_sent=False)


ID, B = there("id"), there("b", TEXT)


@pytest.mark.parametrize(
    ("sent", "slots", "expected"),
    [
        ("id b:text", [ID, B], ["id b"]),
        ("id b:text x", [ID, B, came("y")], ["id b y"]),  # added, and renamed
        ("id b:text", [ID, B, came("y")], ["id b"]),  # not added yet
        # Nobody can add x and not have y before it.
        ("id b:text x", [ID, B, came("y"), came("x")], ["id b y"]),
        ("id b:text x y", [ID, B, came("y"), came("x")], ["id b y x"]),
        ("id b:text x", [ID, B, came("y", TEXT)], []),  # it was rewritten: a look sees that
        ("id b:text x:text", [ID, B, came("x")], ["id b x"]),
        ("id b:text x:text", [ID, B, there("x")], ["id b x"]),  # rewritten
        ("id b:text x:text", [ID, B, DROPPED_TEXT, came("x")], ["id b -"]),
        ("id b:text x:timestamp", [ID, B, came("y", 1184)], ["id b y"]),  # may keep the file
        # Dropped ones.
        ("id b:text x", [ID, B, DROPPED_INT], ["id b -"]),
        ("id b:text", [ID, B, DROPPED_INT], ["id b"]),
        ("id b:text x:text", [ID, B, DROPPED_INT, came("y", TEXT)], ["id b y"]),
        ("id b:text x", [ID, B, DROPPED_INT, came("y", TEXT)], ["id b -"]),
        ("id b:text x", [ID, B, DROPPED_INT, came("y")], ["id b -", "id b y"]),
        ("id b:text x", [ID, B, DROPPED_INT, came("x")], ["id b x", "id b -"]),
        ("id b:text x", [ID, B, DROPPED_INT, there("y")], ["id b y"]),
        ("id x b:text", [ID, DROPPED_INT, B], ["id - b"]),
        ("id b:text c:text", [ID, DROPPED_TEXT, there("c", TEXT)], ["id - c"]),
        ("id b:user", [ID, DROPPED_INT], ["id -"]),  # nobody knows what it was
        # Swapped for a while: all are there.
        ("id b a", [ID, there("a"), there("b")], ["id a b"]),
        # Columns that publications leave out.
        ("id b:text", [ID, unsent("a", TEXT), B], ["id b"]),
        ("id a:text b:text", [ID, unsent("a", TEXT), B], ["id a b"]),
        ("id z:text b:text", [ID, unsent("a", TEXT), B], ["id a b"]),
        ("id b:text", [ID, there("a"), B], ["id b"]),  # of a leaf, by name
        ("b:text", [ID, B, came("c", TEXT)], ["b"]),
        ("id c:text", [ID, there("a"), B], []),
        ("b:text id", [ID, B], []),
    ],
)
def test_alignments(sent: str, slots: list[Slot], expected: list[str]) -> None:
    types = {"text": TEXT, "timestamp": 1114, "user": 90000}
    columns = tuple(
        (name, types.get(kind, INT))
        for name, _, kind in (each.partition(":") for each in sent.split())
    )
    found = alignments(columns, tuple(slots))
    assert [" ".join(slots[at].name or "-" for at in way) for way in found] == expected


def test_a_wide_table_is_aligned_soon() -> None:
    slots = [there(f"c{n}") if n % 3 else Slot("", storage=(-1, "i")) for n in range(1600)]
    sent = tuple((slot.name or "old", INT if slot.name else TEXT) for slot in slots)
    assert alignments(sent, tuple(slots)) == (tuple(range(1600)),)


FACTS = RelationFacts(
    OID,
    "public",
    "orders",
    "r",
    OID,
    "public",
    "orders",
    ("id",),
    ("id",),
    "d",
    1,
    (ColumnFacts("id", 1, INT, -1), ColumnFacts("y", 4, INT, -1)),
    dropped=(DroppedColumn(2, 4, "i"), DroppedColumn(3, -1, "i")),
)
LOOKED = KnownColumns({}, names={1: "id", 4: "y"}, attnums=4, gone={2: "a"}, settled=2)
BEFORE_LOOK = replace(LOOKED, open_numbers=frozenset({2, 3}))


def names(
    sent: str,
    known: KnownColumns,
    facts: RelationFacts = FACTS,
    *,
    is_later: bool = False,
    target: int = OID,
) -> str:
    columns = [
        (name, TEXT if kind else INT, -1)
        for name, _, kind in (each.partition(":") for each in sent.split())
    ]
    before = Definition(relation(facts.oid, facts.name, columns), facts)
    found = identified(before, known, target, is_later=is_later)
    assert found.relation is not None
    shown = " ".join(
        "-" if column.name in found.left_out else column.name for column in found.relation.columns
    )
    return shown + (" ?" if found.doubt else "")


def test_names_of_the_target() -> None:
    assert names("id y", LOOKED, is_later=True) == "id y"
    assert names("id x", LOOKED, is_later=True) == "id y"
    assert names("id a z:text", BEFORE_LOOK) == "id a -"
    assert names("id z:text x", BEFORE_LOOK) == "id - y"
    # The target has the name of number 2 before it was dropped; number 3 came and went.
    assert names("id x z:text", BEFORE_LOOK) == "id a -"
    # Dropped after the look, and renamed after it.
    later = replace(LOOKED, names={1: "id", 2: "a", 3: "b", 4: "y"}, gone={})
    assert names("id a b:text y", later, is_later=True) == "id a b y"
    assert names("id y", later, is_later=True) == "id y"
    renamed = replace(FACTS, columns=(FACTS.columns[0], replace(FACTS.columns[1], name="z")))
    assert names("id z", LOOKED, renamed, is_later=True) == "id y"
    # Number 2 or number 4.
    assert names("id y", BEFORE_LOOK) == "id y ?"
    assert names("id x", BEFORE_LOOK) == "id a ?"


def test_what_only_a_look_can_say() -> None:
    known = replace(LOOKED, names={1: "id", 2: "a", 3: "b"}, attnums=3, gone={})
    for sent, says in (
        ("id a b:text x", "column 'y' of public.orders arrived before"),
        ("y id c d", "other columns than the catalog"),
    ):
        with pytest.raises(TableError, match=says) as caught:
            names(sent, known)
        assert caught.value.remedy is Remedy.LOOK


def test_leaves_have_numbers_of_their_own() -> None:
    leaf = replace(
        FACTS,
        oid=OID + 1,
        name="leaf",
        columns=(ColumnFacts("y", 2, INT, -1), ColumnFacts("id", 3, INT, -1)),
        dropped=(DroppedColumn(1, 4, "i"),),
        above=((OID, (4, 1)),),
    )
    known = replace(LOOKED, settled=4)
    assert names("x id", known, leaf) == "y id"
    assert names("a y id", known, leaf) == "a y id"
    assert names("other x id", known, leaf) == "- y id"
    assert names("y id", LOOKED, replace(leaf, above=()), is_later=True) == "y id"  # detached
    # A dropped column whose name a newer one has: it is not the newer one.
    again = replace(
        leaf,
        columns=(ColumnFacts("id", 2, INT, -1), ColumnFacts("y", 3, INT, -1)),
        dropped=(DroppedColumn(1, -1, "i"),),
        above=((OID, (1, 4)),),
    )
    assert names("y:text id", LOOKED, again) == "- id"


def test_facts_without_numbers_go_by_names() -> None:
    for facts in (replace(FACTS, dropped=None), FACTS.without_numbers()):
        assert names("id y", LOOKED, facts) == "id y"
        assert names("id a", LOOKED, facts) == "id a"
        assert names("id x", LOOKED, facts) == "id - ?"
        assert names("id x", LOOKED, facts, is_later=True) == "id x"  # a look is asked for later
    assert names("id x", KnownColumns({})) == "id x"


def test_facts_of_an_earlier_version() -> None:
    assert RelationFacts.from_json(FACTS.to_json()) == FACTS
    before = replace(FACTS, dropped=None)
    assert not {"dropped", "above"} & json.loads(before.to_json()).keys()
    assert RelationFacts.from_json(before.to_json()) == before


def test_how_the_server_stores_types(database: MakeDatabase) -> None:
    rows = database().execute("SELECT oid::int, typlen::int, typalign::text FROM pg_type")
    known = {oid: (length, align) for oid, length, align in rows}
    assert {oid: known[oid] for oid in STORAGE if oid in known} == {
        oid: storage for oid, storage in STORAGE.items() if oid in known
    }
    assert STORAGE.keys() - known.keys() <= {4191, 4089, 4096, 774, 3220}
