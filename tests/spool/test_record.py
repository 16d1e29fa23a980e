"""Subscriptions' records: what is written is read, also by versions that know less."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.transactions import new_spool

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import Cut, Owner, Spool, SubscriptionRecord, TableRecord, TableState

LSNS = st.integers(0, 2**63 - 1).map(Lsn)
TABLES = st.builds(
    TableRecord, namespace=st.text(), name=st.text(), state=st.sampled_from(TableState),
    applied_through=LSNS, committed=LSNS, copy_number=st.integers(0, 9), rows=st.integers(0, 2**62),
    error=st.none() | st.text(), merge_s=st.floats(0, 1e6), version=st.integers(-1, 2**40),
)  # fmt: skip
OIDS = st.integers(1, 2**32 - 1)
CUTS = st.builds(
    Cut, lsn=LSNS, made_at=st.floats(0, 1e12),
    versions=st.dictionaries(OIDS, st.integers(0, 2**40), max_size=3),
)  # fmt: skip
RECORDS = st.builds(
    SubscriptionRecord, name=st.just("lake"), owner=st.sampled_from(Owner), mode=st.just("current"),
    sink=st.text(), registered=LSNS, position=LSNS,
    tables=st.dictionaries(OIDS, TABLES, max_size=3), cut=st.none() | CUTS,
    cuts=st.lists(CUTS, max_size=2).map(tuple),
)  # fmt: skip


@given(RECORDS)
def test_what_is_written_is_read(record):
    assert SubscriptionRecord.from_json(record.to_json(), "r") == record


def a_record(name="lake", **more):
    return SubscriptionRecord(name, Owner.CONFIG, "current", "delta", Lsn(1), Lsn(2), **more)


def test_keys_of_a_newer_version_are_kept():
    raw = {**json.loads(a_record().to_json()), "verify_at": "0/5"}
    record = SubscriptionRecord.from_json(json.dumps(raw).encode(), "r")
    assert json.loads(record.to_json()) == raw


def test_a_newer_format_is_refused():
    raw = {**json.loads(a_record().to_json()), "format": 3}
    with pytest.raises(ForeignSpool, match="format 3"):
        SubscriptionRecord.from_json(json.dumps(raw).encode(), "r")
    with pytest.raises(SpoolError):
        SubscriptionRecord.from_json(b"{}", "r")


def test_records_lie_in_the_spool(tmp_path):
    spool = new_spool(tmp_path / "spool")
    assert spool.subscription("lake") is None
    with pytest.raises(SpoolError, match="not known"):
        SubscriptionRecord.load(spool.path, "lake")
    a_record("lake").save(spool.path)
    a_record("other").save(spool.path)
    changed = a_record(tables={5: TableRecord("public", "t")}).with_table(5, rows=7)
    changed.save(spool.path)
    assert SubscriptionRecord.load(spool.path, "lake") == changed
    assert [one.name for one in Spool.open(spool.path).subscriptions()] == ["lake", "other"]
    with pytest.raises(SpoolError, match="cannot name"):
        a_record("../evil").save(spool.path)
