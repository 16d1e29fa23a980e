"""What a subscription does about each kind of error."""

from __future__ import annotations

import pickle

import pytest

from pgsluice.copy import TableRewritten
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
)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (TableError, Remedy.PARK),
        (EvaluationError, Remedy.PARK),
        (TableRewritten, Remedy.RETRY),
        (SourceUnreachable, Remedy.WAIT),
        (SourceRefused, Remedy.RETRY),
        (SpoolHole, Remedy.WAIT),
        (SinkError, Remedy.STOP),
    ],
)
def test_an_error_of_ours_carries_its_remedy(error: type[PgsluiceError], remedy: Remedy) -> None:
    assert Failure.of(error("why", hint="do that")) == Failure(remedy, "why\n  → do that")


def test_a_raise_may_name_another_remedy_and_keeps_it_across_processes() -> None:
    error = pickle.loads(pickle.dumps(TableError("why", remedy=Remedy.COPY, table="t")))
    assert (error.remedy, error.table) == (Remedy.COPY, "t")
    assert Failure.of(error).remedy is Remedy.COPY


def test_an_error_of_another_library_is_tried_again_and_leaves_a_traceback() -> None:
    try:
        raise OSError("no room")
    except OSError as error:
        failure = Failure.of(error)
    assert (failure.remedy, failure.message) == (Remedy.RETRY, "OSError: no room")
    assert failure.details is not None
    assert "Traceback" in failure.details
