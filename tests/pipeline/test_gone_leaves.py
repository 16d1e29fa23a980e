"""Partitions that go with their rows: only these are removed, and the others stay as they are."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.partition_cases import (
    BY_OWN_NAME,
    CASES,
    EMPTIED,
    VIA_ROOT,
    Case,
    change,
    make,
    publish_via_root,
)
from tests.support.pipeline import MakePipeline

from pgsluice.spool import find_record


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param({**CASES, **BY_OWN_NAME}, id="by leaf"),
        pytest.param(VIA_ROOT, id="via root", marks=pytest.mark.pg(">= 13")),
        pytest.param(EMPTIED, id="via root, emptied", marks=pytest.mark.pg("== 14")),
    ],
)
def test_rows_of_partitions_that_are_gone_are_removed(
    cases: dict[str, Case],
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's own publications send no TRUNCATE of a partition under its root's name. Under
    its own name it comes in its place among the changes, unless other partitions decide the bound.

    PostgreSQL 13 and 14 would not send what follows for a partition that had been a table before.
    """
    use_local_spark(monkeypatch)
    one, is_via_root = pipeline(shop := database()), cases in (VIA_ROOT, EMPTIED)
    cases = {name: case for name, case in cases.items() if case.since <= shop.server.programs.major}
    for name, case in cases.items():
        make(shop, name, case)
    if is_via_root:
        publish_via_root(shop, cases)

    def are_copied() -> bool:
        """Each question is a commit: an idle source's position stands still for seconds."""
        shop.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        return all(one.table(name).is_active for name in cases)

    with one.live():
        one.wait_until(lambda: find_record(one.spool, "lake") is not None)
        one.wait_until(lambda: len(one.record().tables) == len(cases) and are_copied())
        before = {name: one.table(name) for name in cases}
        for name, case in cases.items():
            change(shop, name, case.change)

        def is_seen(name: str) -> bool:
            return one.table(name).source.fingerprint != before[name].source.fingerprint

        one.wait_until(lambda: all(map(is_seen, cases)) and are_copied())
        for name in cases:
            shop.execute(f"UPDATE {name} SET v = 'later' WHERE id % 50 = 1")
            change(shop, name, cases[name].later)
        one.wait_applied()
        after = {name: one.table(name) for name in cases}
    one.assert_equal(*cases)
    copied = {
        name: after[name].copied.reason
        for name in cases
        if after[name].copy_number != before[name].copy_number
    }
    assert copied.keys() == {name for name, case in cases.items() if case.is_copied}, copied
