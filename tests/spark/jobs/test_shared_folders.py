"""Tasks look for the folders that they have to share before they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.local_spark import LocalSession, context_of

from pgsluice.errors import ConfigError, Failure
from pgsluice.spark.jobs.shared_folders import marks, shared_folders
from pgsluice.spark.jobs.tasks import run_tasks


def double(number: int) -> int:
    return 2 * number


def run(numbers: list[int]) -> list[tuple[int, int | Failure]]:
    return run_tasks(context_of(LocalSession())(), double, numbers)


def test_a_folder_that_a_task_does_not_see_ends_the_run(tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "new" / "lake"
    with shared_folders([spool, lake]):
        assert run([1, 2]) == [(1, 2), (2, 4)]
        (lake / ".pgsluice-shared").unlink()  # as if this machine had another disk there
        with pytest.raises(ConfigError, match=r"does not see the driver's folder .*lake"):
            run([1, 2])
    assert marks() == ()
    assert run([1]) == [(1, 2)]


def test_a_folder_that_the_driver_cannot_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot write to the folder"),
        shared_folders([tmp_path / "file" / "lake"]),
    ):
        pass
