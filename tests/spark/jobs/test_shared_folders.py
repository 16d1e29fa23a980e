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


def test_an_own_folder_of_a_former_driver_is_not_the_drivers_folder(tmp_path: Path) -> None:
    """Runs that end or are killed leave their mark, so a machine may have another folder's."""
    lake, former = tmp_path / "lake", tmp_path / "former"
    with shared_folders([former]):
        pass
    with shared_folders([lake]):
        own = lake / ".pgsluice-shared"
        own.write_bytes((former / own.name).read_bytes())  # as if this machine had its own disk
        with pytest.raises(ConfigError, match=r"does not see the driver's folder .*lake"):
            run([1, 2])
    with shared_folders([lake]), shared_folders([lake]):  # another run there has the same mark
        assert run([1]) == [(1, 2)]


def test_an_empty_mark_of_an_earlier_version_gets_an_id(tmp_path: Path) -> None:
    (tmp_path / ".pgsluice-shared").touch()
    with shared_folders([tmp_path]):
        assert all(mark.folder_id for mark in marks())
        assert run([1]) == [(1, 2)]


def test_a_folder_that_the_driver_cannot_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot write to the folder"),
        shared_folders([tmp_path / "file" / "lake"]),
    ):
        pass
