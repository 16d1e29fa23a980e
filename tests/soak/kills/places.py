"""Every failpoint of ``src``: in which rounds the soak of kills has kills there, or which tests.

A *round* is what a run has to do: see :mod:`tests.soak.kills.rounds`. A *state* is what a kill
leaves: nothing new at the target, its new content, or that and the record of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What the target and the record have of a round after a kill."""

    NOTHING = "before the commit"
    ALTERED = "between new columns and their rows"
    COMMITTED = "between commit and record"
    RECORDED = "after the record"


@dataclass(frozen=True)
class Place:
    """A failpoint of this soak.

    Attributes:
        rounds: those whose runs pass it.
        leaves: the states that its kills leave, each at least once in each of the rounds.
        stores: whether tables and spool lie in a store where it is passed; None: or not.
        rejects: only rounds with values that do not fit pass it.
        armed: another failpoint that leads to it.
    """

    rounds: tuple[str, ...]
    leaves: tuple[State, ...] = ()
    stores: bool | None = None
    rejects: bool = False
    armed: str = ""


_BEFORE, _COMMITTED, _RECORDED = (State.NOTHING,), (State.COMMITTED,), (State.RECORDED,)

PLACES = {
    "store.sync": Place(("batch", "first copy"), _BEFORE, stores=False),
    "store.upload": Place(("batch", "first copy"), _BEFORE, stores=True),
    "store.put": Place(("batch", "first copy"), _BEFORE, stores=True),
    "delta.written": Place(("batch", "large", "copy"), _BEFORE),
    "delta.before_commit": Place(("batch", "large", "copy", "alter", "rename"), _BEFORE),
    "delta.after_commit": Place(("batch", "large", "alter"), _COMMITTED),
    "delta.clean_up": Place(("batch",), _BEFORE, armed="delta.before_commit=eio"),
    "target.altered": Place(("alter",), (State.ALTERED,)),
    "batch.staged": Place(("large",), _BEFORE),
    "batch.before_record": Place(("batch", "large"), _COMMITTED),
    "rejects.writing": Place(("batch", "copy"), _BEFORE, rejects=True),
    "rejects.written": Place(("batch", "large", "copy", "first copy"), _BEFORE, rejects=True),
    "rejects.folding": Place(("batch", "copy"), _COMMITTED, rejects=True),
    "rejects.folded": Place(("batch", "large", "copy", "first copy"), _COMMITTED, rejects=True),
    "record.write": Place(("batch",), stores=False),
    "record.before_fsync": Place(("batch",), _COMMITTED, stores=False),
    "record.before_newline": Place(("batch", "copy"), _COMMITTED, stores=False),
    "record.after_newline": Place(("batch", "copy"), _RECORDED, stores=False),
    "record.before_put": Place(("batch", "copy"), _COMMITTED, stores=True),
    "record.after_put": Place(("batch", "copy"), _RECORDED, stores=True),
    "copy.reading": Place(("copy", "first copy"), _BEFORE),
    "copy.staged": Place(("copy", "first copy"), _BEFORE),
    "copy.committed": Place(("copy", "first copy"), _COMMITTED),
    "copy.before_renamed": Place(("rename",), _BEFORE),
    "copy.renamed": Place(("rename",), _COMMITTED),
    "copy.after_renamed": Place(("rename",), _COMMITTED),
}
_BY_ONE_TASK = frozenset({"batch.staged"})
_FROM_THE_SOURCE = frozenset({"copy.renamed", "copy.after_renamed"})
NOT_PASSED = {
    "changelog": _BY_ONE_TASK | _FROM_THE_SOURCE,
    "history": _BY_ONE_TASK | _FROM_THE_SOURCE,
    "without a key": _BY_ONE_TASK,
}
"""Places that a mode does not pass: one task writes each batch, and a renamed table is copied from
the source."""
ELSEWHERE = {
    "capture.frontier_lowered": "tests/capture/test_failover.py",
    "copy.adopted": "tests/pipeline/test_adopt.py",
    "copy.comparing": "tests/pipeline/test_adopt.py",
    "copy.kept": "tests/pipeline/test_copies_resumed.py",
    "copy.ranges_staged": "tests/pipeline/test_adopt.py",
    "slot.after_create": "tests/capture/test_capture.py",
    "slot.before_create": "tests/capture/test_capture.py",
    "spool.after_commit_prepared": "tests/capture/test_streaming.py",
    "spool.after_commits": "tests/spool/test_crash.py",
    "spool.after_floor": "tests/spool/test_crash.py",
    "spool.after_part": "tests/spool/test_crash.py",
    "spool.after_prepared": "tests/capture/test_streaming.py",
    "spool.after_put": "tests/capture/test_in_stores.py",
    "spool.after_rename": "tests/spool/test_crash.py",
    "spool.after_segment": "tests/spool/test_crash.py",
    "spool.before_fsync": "tests/spool/test_crash.py",
    "spool.before_put": "tests/capture/test_in_stores.py",
    "spool.before_rename": "tests/spool/test_crash.py",
    "spool.write": "tests/spool/test_crash.py",
    "verification.compared": "tests/pipeline/test_renamed.py",
}
"""Those that no run passes on the way from a batch or a copy to its record; tests that arm them."""


def places_of(round_: str, *, in_store: bool, rejects: bool) -> Iterator[tuple[str, Place]]:
    """The places that a round passes."""
    for name, place in PLACES.items():
        is_there = place.stores is None or place.stores == in_store
        if round_ in place.rounds and is_there and (rejects or not place.rejects):
            yield name, place
