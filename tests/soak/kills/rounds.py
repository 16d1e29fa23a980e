"""Rounds of the soak of kills: changes, a run that is killed, the next run, the comparison.

Runs are those of ``run --once``, without a JVM. The killed one is a process of its own, which is
forked for it and knows nothing of earlier runs.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.soak.kills.places import NOT_PASSED, PLACES, State, places_of
from tests.soak.kills.run import WAITS, fork_server, preload, prepare, run_until
from tests.soak.kills.tables import APPENDED, Subject
from tests.support.children import Child
from tests.support.pipeline import Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.cli.copy_request import ask_for_copy, find_table

PASSES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Runs are killed at these passes of a place until its kills have left each state, and then at
these again: runs differ in how often they pass one."""


@dataclass
class Kills:
    """Kills the runs of one pipeline at each place, one after the other.

    Attributes:
        states: how often a kill left each state.
        done: each place with the round.
        checkpoints: those that were compared.
    """

    one: Pipeline
    mode: str
    in_store: bool
    rng: random.Random
    states: Counter[State] = field(default_factory=Counter)
    done: set[tuple[str, str]] = field(default_factory=set)
    checkpoints: set[int] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=count)

    def run(self) -> None:
        """All rounds at all places."""
        preload()
        subject = Subject(self.one, self.mode, "t")
        subject.create()
        self._recover(subject)
        rounds: dict[str, Callable[[Subject], Subject]] = {
            "batch": self._batch,
            "large": self._batch,
            "alter": self._alter,
            "copy": self._copy,
            "first copy": self._first_copy,
            "rename": self._rename,
        }
        chosen = os.environ.get("PGSLUICE_SOAK_ROUNDS")
        for name in chosen.split(",") if chosen else rounds:
            begin = rounds[name]
            for place, _ in places_of(name, in_store=self.in_store, rejects=subject.rejects):
                if place not in NOT_PASSED.get(self.mode, ()):
                    self._kill_each_pass(subject, name, place, begin)

    def _kill_each_pass(
        self, subject: Subject, round_: str, place: str, begin: Callable[[Subject], Subject]
    ) -> None:
        """Kill a run at the place's first pass, and others at later ones."""
        left: Counter[State] = Counter()
        for number in [*PASSES, *PASSES]:
            changed = begin(subject)
            state = self._kill(changed, place, number, large=round_ == "large")
            self._recover(changed, large=round_ == "large")
            changed.assert_as_source()
            changed.assert_rejects()
            if state is not None:
                left[state] += 1
            if left and {*PLACES[place].leaves} <= {*left}:
                break
        assert left, f"no run of the round {round_!r} passes {place}"
        assert {*PLACES[place].leaves} <= {*left}, f"{place}, {round_}: {left}"
        self.states += left
        self.done.add((place, round_))

    def _kill(self, subject: Subject, place: str, number: int, *, large: bool) -> State | None:
        """Kill a run at the n-th pass of a place; what that leaves, or None: it has fewer."""
        before = written(subject)
        killed = self.one.folder / f"killed{next(self._numbers)}"
        name = f"copy.reading public.{subject.name}" if place == "copy.reading" else place
        armed = f"{name}=kill@{number}:{killed}"
        if PLACES[place].armed:
            armed += f",{PLACES[place].armed}"
        code = Child(run_until, self.one.path, armed, large, fork_server()).wait(HANGS_S)
        if not killed.exists():
            assert code == 0 or PLACES[place].armed, f"{place}: the run ended with {code}"
            return None
        assert code == -signal.SIGKILL, f"{place}: {code}"
        return self._state(subject, before)

    def _state(self, subject: Subject, before: tuple[int, ...]) -> State:
        now = written(subject)
        if now == before:
            return State.NOTHING
        copy_number, position, _ = now
        if now[:2] == before[:2]:
            return State.ALTERED
        record = self.one.record()
        for table in record.tables.values():
            is_it = table.name == subject.name and not table.is_to_copy
            is_there = table.copy_number == copy_number and table.committed >= position
            if is_it and is_there and table.old_target is None:
                return State.RECORDED
        return State.COMMITTED

    def _recover(self, subject: Subject, *, large: bool = False) -> None:
        """The next run, and the checkpoint that it makes."""
        with pytest.MonkeyPatch.context() as patch:
            prepare(patch, large=large)
            self.one.waits = WAITS
            self.one.once()
        cut = self.one.record().cut
        assert cut is not None
        tables = self.one.record().tables
        version = {tables[oid].name: version for oid, version in cut.versions.items()}
        if subject.name in version:  # else it was copied after the checkpoint
            subject.assert_checkpoint(int(cut.lsn), version[subject.name])
            self.checkpoints.add(int(cut.lsn))

    # What a run finds.

    def _batch(self, subject: Subject) -> Subject:
        subject.change(self.rng)
        return subject

    def _alter(self, subject: Subject) -> Subject:
        number = next(self._numbers)
        subject.source.commit(f"ALTER TABLE {subject.name} ADD n{number} int DEFAULT {number}")
        # A TRUNCATE before capture has read the column would leave its value unknown.
        subject.change(self.rng, transactions=0)
        return subject

    def _copy(self, subject: Subject) -> Subject:
        subject.change(self.rng, transactions=2)
        if self.mode in APPENDED:  # the copy stands for changes that are not applied before it
            self._recover(subject)
            subject.assert_as_source()
        [oid] = find_table(self.one.config, subject.name, "lake").values()
        assert not ask_for_copy(self.one.config, "lake", oid), "a run is active"
        return subject

    def _first_copy(self, subject: Subject) -> Subject:
        new = Subject(self.one, self.mode, f"first{next(self._numbers)}")
        new.create()
        return new

    def _rename(self, subject: Subject) -> Subject:
        number = next(self._numbers)
        old = Subject(self.one, self.mode, f"old{number}")
        old.create()
        self._recover(old)
        old.change(self.rng, transactions=1)
        self.one.database.execute(f"ALTER TABLE old{number} RENAME TO new{number}")
        new = Subject(self.one, self.mode, f"new{number}")
        new.number = old.number
        new.change(self.rng, transactions=1)
        return new


def written(subject: Subject) -> tuple[int, int, int]:
    """Copy number and position of the target's newest commit of ours, and its columns."""
    try:
        delta: DeltaTable = subject.delta()
    except TableNotFoundError:
        return -1, -1, -1
    for commit in delta.history():
        if "pgsluice.position" in commit:
            high, low = commit["pgsluice.position"].split("/")
            position = (int(high, 16) << 32) + int(low, 16)
            return int(commit["pgsluice.copy"]), position, len(delta.schema().fields)
    raise AssertionError(f"no commit of {subject.name} is ours")
