"""What a promotion means for a subscription: copies past it are made again, positions hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.copy import CopyResult, Snapshot
from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, SpoolIdentity, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.copying import _after, _followed

FIRST = SpoolIdentity.new(system_identifier="1", timeline=1, database="d", slot="s")
SECOND = replace(FIRST, timeline=2, history=((1, Lsn(500)),))
TABLE = TableRecord("public", "t", TableState.DATA_COPY)


def copied(position: int, timeline: int) -> TableRecord:
    snapshot = Snapshot("00000003-1", Lsn(position), timeline)
    return _after(TABLE, CopyResult(1, rows=1, version=0), snapshot, is_last=False)


@pytest.mark.parametrize(
    ("what", "table", "identity", "state"),
    [
        ("no promotion", copied(600, 1), FIRST, TableState.COPIED),
        ("before the switch point", copied(500, 1), SECOND, TableState.COPIED),
        ("after it, of the old primary", copied(501, 1), SECOND, TableState.INITIALISE),
        ("after it, of the new primary", copied(501, 2), SECOND, TableState.COPIED),
        ("of one that capture has not followed yet", copied(501, 2), FIRST, TableState.COPIED),
        ("not known of which", copied(501, 0), SECOND, TableState.COPIED),
    ],
)
def test_a_copy_of_what_is_no_more_is_made_again(what, table, identity, state) -> None:
    assert _followed(table, identity).state is state, what


def test_what_was_applied_since_does_not_hide_it() -> None:
    table = replace(copied(501, 1), applied_through=Lsn(900), state=TableState.READY)
    assert _followed(table, SECOND).state is TableState.INITIALISE
    parked = replace(table, state=TableState.PARKED)
    assert _followed(parked, SECOND) == parked


def test_the_record_keeps_where_a_copy_was_taken(tmp_path: Path) -> None:
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1), {7: copied(501, 3)}
    )
    record.save(tmp_path)
    table = SubscriptionRecord.load(tmp_path, "lake").tables[7]
    assert (table.copied_at, table.copied_on) == (Lsn(501), 3)


def test_the_identity_keeps_the_history() -> None:
    assert SpoolIdentity.from_json(SECOND.to_json(), "identity.json") == SECOND
    # One from before histories were kept.
    raw = json.loads(FIRST.to_json())
    del raw["history"]
    assert SpoolIdentity.from_json(json.dumps(raw).encode(), "identity.json") == FIRST
