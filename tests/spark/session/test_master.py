"""What the URL of Spark's master says."""

from __future__ import annotations

import os

import pytest

from pgsluice.spark.session.master import DEFAULT_MASTER, is_local, local_cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[4,3]", 4),
        (DEFAULT_MASTER, os.cpu_count()),
        ("local[*,3]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_where_tasks_run_and_how_many_at_once(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    assert is_local(master) is (cores is not None)
