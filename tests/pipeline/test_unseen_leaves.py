"""Partitions that come, get rows and go, or are others, without a look at the catalog in between.

Where leaves are sent under their own names, the record knows of which leaves the target has rows.
Older servers are in ``tests/soak/test_partitions.py``.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase, Servers
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline
from tests.support.unseen_leaves import (
    COPIED,
    copied,
    pass_while_no_look_comes_through,
    pass_while_the_driver_is_down,
)

from pgsluice.subscription.base.waits import Waits


def test_while_the_driver_was_down(
    database: MakeDatabase,
    servers: Servers,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_local_spark(monkeypatch)
    one = pipeline(database(servers(18)))
    pass_while_the_driver_is_down(one, is_restarted=False)
    assert copied(one) == COPIED


@pytest.mark.soak  # make soak AREA=long
def test_while_no_look_came_through(
    database: MakeDatabase,
    servers: Servers,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables that are marked while others are verified wait for the next round."""
    use_local_spark(monkeypatch)
    one = pipeline(database(servers(18)))
    one.waits = Waits(verification_retry_s=0.0)
    pass_while_no_look_comes_through(one)
