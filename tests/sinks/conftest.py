"""What several tests of sinks need."""

from __future__ import annotations

import pytest

from pgsluice.sinks.lake import row_cache


@pytest.fixture
def keeps_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of tables as small as these are kept decoded, too."""
    monkeypatch.setattr(row_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(row_cache, "FEW_ROWS", 1)
