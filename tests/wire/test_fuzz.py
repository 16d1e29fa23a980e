"""A small part of what ``make fuzz`` does: no bytes raise anything but a ProtocolError."""

from __future__ import annotations

import pytest
from tests.wire.wire_fuzz import fuzz_messages, fuzz_sequences


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_are_refused_or_come_back_the_same(seed: int) -> None:
    report = fuzz_messages(seed, 10_000)
    # Both ends are tested: neither are all mutations harmless, nor all fatal.
    assert 0 < report.accepted < report.inputs


def test_messages_in_any_order_are_taken_or_refused() -> None:
    assert 0 < fuzz_sequences(0, 20_000) < 20_000
