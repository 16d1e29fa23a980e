"""The golden corpus: bytes of servers 10 to 18, under each pair of options that they know."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scripts.corpus import VERSIONS, option_sets
from tests.support.corpus import CAPTURES_BY_ID, FOLDER, Capture

from pgsluice.cli.decode.follow import Follower, Raw
from pgsluice.cli.decode.objects import to_object
from pgsluice.errors import ProtocolError
from pgsluice.wire import (
    MESSAGES,
    Delete,
    Event,
    Insert,
    StreamAbort,
    TransactionMachine,
    Truncate,
    TupleData,
    Update,
    decode_first_message,
)

CAPTURES = list(CAPTURES_BY_ID.values())
SINCE = {"T": 11, **dict.fromkeys("MSEcA", 14), **dict.fromkeys("bPKrp", 15)}

each_capture = pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.id)


@each_capture
def test_every_message_comes_back_as_it_was(capture: Capture) -> None:
    machine = TransactionMachine(parallel=capture.is_parallel)
    for _, data in capture.messages():
        message, _ = machine.feed(data)
        assert message.encode() == data
    assert not machine.open_streams


@each_capture
def test_every_message_tells_where_it_ends(capture: Capture) -> None:
    """Without a frame around it: followed by anything, and cut short anywhere."""
    machine = TransactionMachine(parallel=capture.is_parallel)
    for _, data in capture.messages():
        place = {"in_stream": machine.in_stream, "parallel": capture.is_parallel}
        message, _ = machine.feed(data)
        assert decode_first_message(data + b"\nB", **place) == (message, len(data))
        for end in {0, len(data) // 2, len(data) - 1}:
            with pytest.raises(ProtocolError):
                decode_first_message(data[:end], **place)


@each_capture
def test_every_message_says_what_is_expected(capture: Capture) -> None:
    follower = Follower(is_parallel=capture.is_parallel)
    expected = capture.objects()
    rows = capture.messages()
    assert len(expected) == len(rows)
    for (lsn, data), says in zip(rows, expected, strict=True):
        assert to_object(follower.take(Raw(data, 0, 1, capture.id, lsn=lsn)), follower) == says
    assert Counter(says["tag"] for says in expected) == capture.counts


def committed(capture: Capture) -> list[list[tuple[Any, ...]]]:
    """What the capture's transactions leave behind, in commit order.

    By names, since OIDs are each database's own; of binary values, which can hold OIDs, only
    that they are there.
    """
    machine = TransactionMachine(parallel=capture.is_parallel)
    open_ones: dict[int | None, list[tuple[Any, ...]]] = {}
    prepared: dict[int | None, list[tuple[Any, ...]]] = {}
    done = []
    for _, data in capture.messages():
        message, step = machine.feed(data)
        match step.event:
            case Event.CONTENT:
                change = _change(message, machine, has_values=not capture.options["binary"])
                open_ones.setdefault(step.xid, []).append(change)
            case Event.SUBTRANSACTION_ABORTED:
                del open_ones[step.xid][step.length :]
            case Event.ABORTED:
                open_ones.pop(step.xid, None)
            case Event.COMMITTED:
                done.append(open_ones.pop(step.xid, []))
            case Event.PREPARED:
                prepared[step.xid] = open_ones.pop(step.xid, [])
            case Event.COMMIT_PREPARED:
                done.append(prepared.pop(step.xid))
            case Event.ROLLBACK_PREPARED:
                prepared.pop(step.xid)
    changes = [[one for one in transaction if one] for transaction in done]
    return [transaction for transaction in changes if transaction]


def _change(message: Any, machine: TransactionMachine, *, has_values: bool) -> tuple[Any, ...]:
    def name(oid: int) -> str:
        relation = machine.relation(oid)
        assert relation is not None
        return relation.name

    def row(data: TupleData) -> Any:
        return data if has_values else data.kinds

    match message:
        case Insert():
            return "I", name(message.oid), row(message.new)
        case Update(_, None):
            return "U", name(message.oid), row(message.new)
        case Update(_, old):
            return "U", name(message.oid), type(old), row(old.data), row(message.new)
        case Delete(_, old):
            return "D", name(message.oid), type(old), row(old.data)
        case Truncate():
            return "T", tuple(name(oid) for oid in message.oids), message.flags
    return ()


def _comparable() -> list[list[Capture]]:
    """Captures of one version that have the same values in the same form to send."""
    groups: dict[tuple[Any, ...], list[Capture]] = {}
    for one in CAPTURES:
        key = (one.version, one.options["binary"], one.options["origin"])
        groups.setdefault(key, []).append(one)
    return [group for group in groups.values() if len(group) > 1]


@pytest.mark.parametrize("group", _comparable(), ids=lambda group: group[0].id)
def test_what_is_committed_depends_on_no_option(group: list[Capture]) -> None:
    """Streamed or not, prepared or not: the same rows, in the same order."""
    first = committed(group[0])
    assert sum(map(len, first)) > 90
    for other in group[1:]:
        assert committed(other) == first, f"{other.id} against {group[0].id}"


def test_it_has_every_message_that_a_version_can_send() -> None:
    for version in VERSIONS:
        expected = {tag for tag in map(chr, MESSAGES) if SINCE.get(tag, 10) <= version}
        seen = {tag for one in CAPTURES if one.version == version for tag in one.counts}
        assert seen == expected, f"PostgreSQL {version}"


def test_it_has_every_pair_of_options_that_a_server_knows() -> None:
    for version in VERSIONS:
        found = [one.options for one in CAPTURES if one.version == version]
        assert found == list(option_sets(version)), f"PostgreSQL {version}"


def test_it_has_both_aborts_in_both_forms() -> None:
    seen = set()
    for capture in CAPTURES:
        machine = TransactionMachine(parallel=capture.is_parallel)
        for _, data in capture.messages():
            message, _ = machine.feed(data)
            if isinstance(message, StreamAbort):
                seen.add((capture.version, message.is_top_level, message.at is not None))
    assert seen == {
        (version, is_top_level, has_place)
        for version in VERSIONS
        if version >= 14
        for is_top_level in (False, True)
        for has_place in ([False, True] if version >= 16 else [False])
    }


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 5_000_000
