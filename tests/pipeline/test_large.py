"""A transaction that is larger than memory should be: it arrives in parts, and equal."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.pipeline import MakePipeline

pytestmark = pytest.mark.usefixtures("spark")

ROWS = 50_000


def test_a_large_transaction_comes_in_parts(database: MakeDatabase, pipeline: MakePipeline) -> None:
    one = pipeline(database())
    assert replicate(one, ROWS, segment_bytes=2**18) < CAPTURE_BYTES
