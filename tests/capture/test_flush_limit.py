"""Positions that jump ahead are compared with what the server has flushed."""

from __future__ import annotations

import pytest

from pgsluice.capture.receiving.ack_policy import FlushLimit
from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn


class Server:
    """A server that says how far its WAL is flushed."""

    def __init__(self) -> None:
        self.flushed, self.asked = Lsn(1000), 0

    def ask(self) -> Lsn:
        self.asked += 1
        return self.flushed


def test_only_positions_far_ahead_cost_a_query() -> None:
    server = Server()
    limit = FlushLimit(Lsn(1000), server.ask, 100)
    limit.check(1000)
    limit.check(1100)
    assert server.asked == 0
    server.flushed = Lsn(5000)
    limit.check(2000)
    limit.check(5100)
    assert server.asked == 1, "the answer holds for what it covers"


def test_a_position_past_the_flush_lsn_is_refused() -> None:
    server = Server()
    limit = FlushLimit(Lsn(1000), server.ask, 100)
    with pytest.raises(ProtocolError, match="flushed up to 0/3E8 only") as refused:
        limit.check(1101)
    assert refused.value.facts == {"lsn": Lsn(1101), "flush_lsn": Lsn(1000)}


def test_an_answer_from_behind_does_not_lower_what_is_known() -> None:
    """A standby that took over may have replayed less than its primary had flushed."""
    server = Server()
    limit = FlushLimit(Lsn(2000), server.ask, 0)
    with pytest.raises(ProtocolError, match="flushed up to 0/7D0 only"):
        limit.check(2001)
