"""Each target belongs to the table that has its name: all small cases, and any sequence of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.spool import Claim, FormerTarget, TableRecord, TableState, TargetName
from pgsluice.subscription.refresh.naming import TargetChanges, assign_targets

OIDS, NAMES = (1, 2, 3), ("a", "b", "c")
NEVER_COPIED = 3
"""This table waits for its first copy: nothing is at its target."""


@dataclass
class Targets:
    """What a subscription knows, and whose rows are really at the targets."""

    known: dict[int, TableRecord] = field(default_factory=dict)
    former: Mapping[TargetName, FormerTarget] = field(default_factory=dict)
    rows: dict[TargetName, set[int]] = field(default_factory=dict)

    def add(self, oid: int, name: TargetName) -> None:
        never = oid == NEVER_COPIED
        state = TableState.INITIALISE if never else TableState.READY
        self.known[oid] = TableRecord(*name, state, copy_number=0 if never else 1, version=0)
        if not never:
            self.rows[name] = {oid}

    def look(self, sent: Mapping[int, TargetName]) -> None:
        """Assign, check what has to hold, and carry it out."""
        changes = assign_targets(self.known, self.former, sent)
        self.check(sent, changes)
        for oid in changes.forgotten:
            del self.known[oid]
        for oid, (namespace, name) in changes.renamed.items():
            self.known[oid] = replace(self.known[oid], namespace=namespace, name=name)
        for oid, others in changes.predecessors.items():
            if oid in self.known:
                self.known[oid] = replace(self.known[oid], claim=Claim(others))
            else:
                self.known[oid] = TableRecord(*sent[oid], claim=Claim(others))
        self.former = changes.former
        owners = [table.target_name for table in self.known.values()]
        assert len(owners) == len(set(owners)), "two tables have one target"
        assert not set(owners) & self.former.keys(), "a target that stands still has a table"
        for name in self.rows.keys() - set(owners):
            assert set(self.former[name].oids) >= self.rows[name], "a target is forgotten"
        for oid, name in sent.items():
            assert self.known[oid].target_name == name

    def check(self, sent: Mapping[int, TargetName], changes: TargetChanges) -> None:
        """Whose rows a table has to replace, and that nothing happens without a reason."""
        for oid, name in sent.items():
            others = self.rows.get(name, set()) - {oid}
            pending = oid in self.known and set(self.known[oid].claim.predecessor_oids) >= others
            if oid not in changes.predecessors:
                assert not others or pending
                assert self.known[oid].target_name == name
                assert oid not in changes.renamed
            else:
                assert others <= set(changes.predecessors[oid])
        assert not changes.forgotten & sent.keys()

    def copy(self, oids: set[int]) -> None:
        """Tables that wait for it are copied to their targets."""
        for oid in oids & self.known.keys():
            table = self.known[oid]
            self.rows[table.target_name] = {oid}
            self.known[oid] = replace(table, state=TableState.READY, copy_number=1, claim=Claim())


def assignments() -> Iterator[dict[int, TargetName]]:
    """All ways to give some of the tables different names."""
    for chosen in itertools.product((None, *NAMES), repeat=len(OIDS)):
        names = {oid: ("s", name) for oid, name in zip(OIDS, chosen, strict=True) if name}
        if len(set(names.values())) == len(names):
            yield names


def test_all_small_cases() -> None:
    cases = 0
    for before, after in itertools.product(assignments(), assignments()):
        free = [("s", name) for name in NAMES if ("s", name) not in before.values()]
        for count in range(len(free) + 1):
            for left in itertools.combinations(free, count):
                targets = Targets(former={name: FormerTarget((1, 9)) for name in left})
                targets.rows = {name: {9} for name in left}
                for oid, name in before.items():
                    targets.add(oid, name)
                targets.look(after)
                cases += 1
    assert cases == 2924, "so the walk is whole"


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from(list(assignments())), st.sets(st.sampled_from(OIDS)))))
def test_any_sequence_of_looks_and_copies(
    steps: list[tuple[dict[int, TargetName], set[int]]],
) -> None:
    targets = Targets()
    for sent, copied in steps:
        targets.look(sent)
        targets.copy(copied & sent.keys())


def known(**names: str) -> dict[int, TableRecord]:
    """Copied tables by their OIDs: ``known(_1="a")``."""
    return {
        int(oid[1:]): TableRecord("s", name, TableState.READY, copy_number=1, version=0)
        for oid, name in names.items()
    }


def test_a_swap_is_two_tables_that_take_each_others_target() -> None:
    changes = assign_targets(known(_1="a", _2="b"), {}, {1: ("s", "b"), 2: ("s", "a")})
    assert changes.renamed == {1: ("s", "b"), 2: ("s", "a")}
    assert changes.predecessors == {1: (2,), 2: (1,)}
    assert not changes.former


def test_the_swap_of_an_online_migration() -> None:
    """``users`` becomes ``users_old`` and ``users_new`` becomes ``users``."""
    sent = {1: ("s", "users_old"), 2: ("s", "users")}
    changes = assign_targets(known(_1="users", _2="users_new"), {}, sent)
    assert changes.predecessors == {1: (), 2: (1,)}
    assert list(changes.former) == [("s", "users_new")]
    # The publications have only the old table.
    changes = assign_targets(known(_1="users"), {}, {1: ("s", "users_old")})
    assert changes.former == {("s", "users"): FormerTarget((1,))}
    # It is added to them, and takes the target that stands still.
    both = {1: ("s", "users_old"), 2: ("s", "users")}
    changes = assign_targets(known(_1="users_old"), changes.former, both)
    assert (changes.predecessors, changes.former) == ({2: (1,)}, {})


def test_a_table_that_is_not_sent_keeps_its_target_until_another_one_takes_it() -> None:
    assert assign_targets(known(_1="a"), {}, {}) == TargetChanges()
    changes = assign_targets(known(_1="a"), {}, {2: ("s", "a")})
    assert (changes.forgotten, changes.predecessors) == ({1}, {2: (1,)})


def test_a_table_whose_target_another_one_had_waits_no_longer() -> None:
    """As a record of an earlier version has it: both tables have one name."""
    both = known(_1="a", _2="a")
    changes = assign_targets(both, {}, {1: ("s", "b"), 2: ("s", "a")})
    assert (changes.renamed, changes.freed) == ({1: ("s", "b")}, {2})
    assert changes.predecessors == {1: (), 2: (1,)}
