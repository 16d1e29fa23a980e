"""What a subscription does about each kind of error."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from pgsluice.disk import naming
from pgsluice.errors import (
    EvaluationError,
    Failure,
    PgsluiceError,
    Remedy,
    SinkError,
    SourceRefused,
    SourceUnreachable,
    SpoolHole,
    TableError,
    TargetUnreachable,
)
from pgsluice.snapshots.reader import TableRewritten


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (TableError, Remedy.PARK),
        (EvaluationError, Remedy.PARK),
        (TableRewritten, Remedy.RETRY),
        (SourceUnreachable, Remedy.WAIT),
        (SourceRefused, Remedy.RETRY),
        (SpoolHole, Remedy.WAIT),
        (TargetUnreachable, Remedy.WAIT),
        (SinkError, Remedy.STOP),
    ],
)
def test_an_error_of_ours_carries_its_remedy(error: type[PgsluiceError], remedy: Remedy) -> None:
    failure = Failure.of(error("why", hint="do that"))
    assert (failure.remedy, failure.message) == (remedy, "why\n  → do that")
    assert failure.is_of_target == (error is TargetUnreachable)


def test_a_raise_may_name_another_remedy_and_keeps_it_across_processes() -> None:
    error = pickle.loads(pickle.dumps(TableError("why", remedy=Remedy.COPY, table="t")))
    assert (error.remedy, error.table) == (Remedy.COPY, "t")
    assert Failure.of(error).remedy is Remedy.COPY


def test_an_error_of_another_library_is_tried_again_and_leaves_a_traceback() -> None:
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        failure = Failure.of(error)
    assert (failure.remedy, failure.message) == (Remedy.RETRY, "ValueError: no such thing")
    assert failure.details is not None
    assert "Traceback" in failure.details


def test_an_error_of_a_disk_is_said_in_words(tmp_path: Path) -> None:
    full = Failure.of(OSError(errno.ENOSPC, "Error writing bytes to file"))
    assert full.message == (
        "no room is left on the disk of a folder of pgsluice\n  → make room there"
    )
    assert (full.remedy, full.is_of_target, full.details) == (Remedy.WAIT, True, None)
    with pytest.raises(OSError, match="Quota") as caught, naming(tmp_path):
        raise OSError(errno.EDQUOT, "Quota exceeded")
    quota = Failure.of(caught.value).message
    assert quota.startswith(f"the quota on the disk of {tmp_path} is used up\n")


def test_a_target_whose_folder_is_a_file_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("a file")
    log = tmp_path / "orders" / "_delta_log"
    with pytest.raises(NotADirectoryError) as caught:
        log.mkdir()
    assert Failure.of(caught.value).message == (
        f"{log} cannot be there: a part of its path is a file\n"
        "  → move that file away, or name another path"
    )


def test_a_target_whose_folder_is_a_link_to_a_missing_one_is_said_in_words(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.symlink_to(tmp_path / "unmounted")
    with pytest.raises(FileExistsError) as caught:
        orders.mkdir(exist_ok=True)
    failure = Failure.of(caught.value)
    assert failure.message == (
        f"{orders} is a file, or a link to a folder that is not there\n"
        "  → mount the disk that the link names, or move the link away"
    )
    assert (failure.remedy, failure.is_of_target) == (Remedy.WAIT, True)


@pytest.mark.parametrize("error", [OSError("no room"), TimeoutError("no answer")])
def test_an_error_of_disk_or_network_parks_no_table(error: OSError) -> None:
    failure = Failure.of(error)
    assert (failure.remedy, failure.details) == (Remedy.WAIT, None)


def test_a_file_that_is_missing_is_an_error_of_its_table() -> None:
    assert Failure.of(FileNotFoundError("part-1.parquet")).remedy is Remedy.RETRY
