"""What a target does not get although its table is ready, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.facts import RelationFacts
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.published.leaf_keys import KeyProblem
from pgsluice.schema_rules.known import ALL_ACTIONS, SourceFingerprint
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.refresh.completeness import why_incomplete, why_standing

FACTS = RelationFacts(1, "s", "t", "r", 1, "s", "t", ("id",), ("id",), "d", 1, ())
RECORD = TableRecord("s", "t", TableState.READY, copy_number=1)


def table(
    facts: RelationFacts = FACTS,
    actions: frozenset[str] = ALL_ACTIONS,
    lacking: frozenset[str] = frozenset(),
) -> ReplicatedTable:
    fingerprint = SourceFingerprint(
        filenodes={1: 1}, columns={}, actions=actions, rules="", lacking=lacking
    )
    return ReplicatedTable(facts, None, None, fingerprint)


def reasons(
    of: ReplicatedTable,
    record: TableRecord = RECORD,
    origin: str = "any",
    has_key: bool = False,
    needs_key: bool = False,
) -> list[str]:
    found = why_incomplete(of, record, origin=origin, has_key=has_key, needs_key=needs_key)
    assert all("\n  → " in each for each in found), "each says what to do"
    return [each.partition("\n")[0] for each in found]


def test_a_table_that_is_kept_whole() -> None:
    assert reasons(table()) == []
    assert reasons(table(), replace(RECORD, state=TableState.INITIALISE, copy_number=0)) == []


@pytest.mark.parametrize(
    ("replica_identity", "identity_key"), [("n", ("id",)), ("d", ()), ("i", ())]
)
def test_no_usable_identity(replica_identity: str, identity_key: tuple[str, ...]) -> None:
    facts = replace(
        FACTS, replica_identity=replica_identity, identity_key=identity_key, primary_key=()
    )
    (why,) = reasons(table(facts, frozenset({"insert", "truncate"})))
    assert why == (
        "inserts only: the server does not send the updates and deletes of the table, since the "
        "table has no replica identity"
    )
    # The server refuses the application's updates then: nothing is lost.
    assert reasons(table(facts)) == []


def test_foreign_partitions() -> None:
    (why,) = reasons(replace(table(), foreign_partitions=("s.far", "s.farther")))
    assert why.startswith(
        "the target lacks the rows of the foreign partitions s.far and s.farther:"
    )


def test_full_without_a_key() -> None:
    facts = replace(FACTS, replica_identity="f", identity_key=(), primary_key=())
    assert reasons(table(facts)) == []
    (why,) = reasons(table(facts), needs_key=True)
    assert "the first update or delete parks the table" in why
    assert reasons(table(facts), needs_key=True, has_key=True) == []
    parked = replace(RECORD, state=TableState.PARKED)
    assert reasons(table(facts), parked, needs_key=True) == [], "the record says why"
    (whole,) = why_incomplete(table(facts), RECORD, origin="any", has_key=False, needs_key=True)
    assert "its primary key" in whole
    assert "REPLICA IDENTITY FULL" not in whole, "the table has it"


def test_leaves_with_other_keys() -> None:
    facts = replace(FACTS, identity_key=(), primary_key=())
    problem = KeyProblem("t has no key that is valid for all of its partitions", "give it one")
    (why,) = reasons(replace(table(facts), key_problem=problem))
    assert why.startswith("t has no key that is valid for all")
    full = replace(table(replace(facts, replica_identity="f")), key_problem=problem)
    assert reasons(full) == []


@pytest.mark.parametrize("action", sorted(ALL_ACTIONS))
def test_an_action_that_the_publications_leave_out(action: str) -> None:
    expected = [
        f"the server does not send the {action}s of the table, since the publications exclude them"
    ]
    assert reasons(table(actions=ALL_ACTIONS - {action})) == expected
    assert reasons(table(lacking=frozenset({f"7:{action}"}))) == expected, "of one leaf"


def test_what_the_configuration_leaves_out() -> None:
    assert "by replication" in reasons(table(), origin="none")[0]
    assert "copy_data = false" in reasons(table(), replace(RECORD, copy_number=0))[0]


def test_why_a_target_stands_still() -> None:
    name = ("s", "users")
    why = why_standing(name, is_there=True, publication="p", has_rules=False)
    assert why == (
        "the server does not send the table that now has the name s.users\n"
        "  → ALTER PUBLICATION p ADD TABLE s.users"
    )
    why = why_standing(name, is_there=True, publication="p", has_rules=True)
    assert "→ add table s.users to a publication of this subscription; " in why
    why = why_standing(
        name, is_there=False, publication="p", has_rules=False, new_name="s.users_old"
    )
    assert why == (
        "the table of this target is now called s.users_old, and uses the target s.users_old"
    )
    why = why_standing(name, is_there=False, publication="p", has_rules=False)
    assert why == "no table has the name s.users any more"


def test_columns_that_the_server_does_not_send() -> None:
    (why,) = reasons(replace(table(), unsent=("a", "g")))
    assert why == (
        "the target lacks the columns a and g: they are in the configuration's publications, but "
        "the server's publications do not send them"
    )
