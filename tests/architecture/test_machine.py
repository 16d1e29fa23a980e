"""Errors of executors say on which machine they happened; those of the driver's do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsluice.errors import Failure, SpoolError, TableError, TargetUnreachable
from pgsluice.spool import Spool
from pgsluice.system.machine import begin_task

HERE = socket.gethostname()


@pytest.fixture(autouse=True)
def driver_again() -> Iterator[None]:
    yield
    begin_task(HERE)


def test_an_executor_that_does_not_see_the_spool_says_so(tmp_path: Path) -> None:
    begin_task("the-driver")
    with pytest.raises(SpoolError) as caught:
        Spool.open(tmp_path)
    assert (
        caught.value.what
        == f"the executor on {HERE} does not see the folder of the spool {tmp_path}"
    )
    assert Failure.of(caught.value).message.count(HERE) == 1
    begin_task(HERE)
    with pytest.raises(SpoolError, match="is not a spool"):
        Spool.open(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        TargetUnreachable("the store does not answer", hint="wait"),
        OSError(5, "Input/output error"),
        ValueError("something else"),
    ],
)
def test_the_first_line_names_the_machine(error: Exception) -> None:
    plain = Failure.of(error).message
    begin_task("the-driver")
    first, *others = Failure.of(error).message.split("\n")
    assert first == f"{plain.split(chr(10))[0]} (on the executor {HERE})"
    assert others == plain.split("\n")[1:]


def test_what_is_wrong_with_a_row_is_so_on_every_machine() -> None:
    begin_task("the-driver")
    assert Failure.of(TableError("a value does not fit")).message == "a value does not fit"
