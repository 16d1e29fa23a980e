"""The whole way for transactions that come before their commit."""

from __future__ import annotations

import random

import pytest
from tests.support.databases import MakeDatabase
from tests.support.interleaving import interleave
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.pipeline import MakePipeline

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.pg(">= 16")]
ROWS = 100_000


# on: make soak AREA=long
@pytest.mark.parametrize("streaming", [pytest.param("on", marks=pytest.mark.soak), "parallel"])
def test_a_large_transaction_is_streamed_and_capture_killed_in_it(
    database: MakeDatabase, pipeline: MakePipeline, streaming: str
) -> None:
    shop = database()
    shop.execute(f"ALTER DATABASE \"{shop.name}\" SET logical_decoding_work_mem = '64kB'")
    one = pipeline(shop, source=f'streaming = "{streaming}"')
    assert replicate(one, ROWS, segment_bytes=2**18, kills=1) < CAPTURE_BYTES


def test_interleaved_transactions_with_savepoints(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    interleave(pipeline, database(), random.Random(1), transactions=20)


def test_prepared_transactions_are_seen_after_their_commit_only(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (0, 0)")
    one = pipeline(shop, source="two_phase = true")
    one.once()
    for gid, first in (("a", 1), ("b", 1001), ("c", 2001)):
        with shop.connect() as session:
            session.execute("BEGIN")
            session.execute(
                f"INSERT INTO t SELECT i, 1 FROM generate_series({first}, {first + 9}) i"
            )
            session.execute(f"UPDATE t SET n = 2 WHERE id = {first}")
            session.execute(f"PREPARE TRANSACTION '{gid}'")
    shop.execute("UPDATE t SET n = 5 WHERE id = 0")
    one.once()
    one.assert_equal("t")
    one.once()  # capture and Spark again, and nothing new
    shop.execute("COMMIT PREPARED 'b'", "ROLLBACK PREPARED 'a'")
    one.once()
    one.assert_equal("t")
    version = one.delta("t").version()
    one.once()
    assert one.delta("t").version() == version, "once, not again"
    shop.execute("INSERT INTO t VALUES (5000, 1)", "COMMIT PREPARED 'c'")
    one.once()
    one.assert_equal("t")
