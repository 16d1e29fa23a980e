"""Merge-on-read under random steps of ours and of others; the whole is ``make soak AREA=delta``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sinks.delta_fuzz import DeltaFuzz

pytestmark = pytest.mark.usefixtures("keeps_small_groups")


@pytest.mark.parametrize(("seed", "kind"), [(1, "text"), (2, "composite")])
def test_random_steps_keep_table_and_model_equal(
    tmp_path: Path, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.sinks.lake.merge.net_merge.LARGE_SHARE", 0.2)
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.MANY_COMMITS", 10)
    monkeypatch.setattr("pgsluice.sinks.lake.upkeep.FILES_OF_A_SIZE", 4)
    monkeypatch.setattr("pgsluice.sinks.lake.keys.sidecars.ROWS_IN_A_RUN", 8)
    monkeypatch.setattr("pgsluice.sinks.lake.mapped_files.RESIDENT_BYTES", 2048)
    DeltaFuzz(tmp_path, seed, kind).run(60)
