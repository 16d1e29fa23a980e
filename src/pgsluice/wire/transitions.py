"""Which message may follow which, as two tables, and what each message does.

:data:`TRANSITIONS` is the table of the connection, which is outside of transactions, or inside one
of three brackets::

    B … C    a committed transaction
    b … P    a prepared transaction; K or r ends it later, perhaps on another connection
    S … E    a block of a transaction in progress; blocks of several alternate

:data:`STREAM_TRANSITIONS` is the table of each transaction in progress, by its top-level xid. It
starts with its first S and ends with c, p, or A of its own xid. An A for a transaction that is not
open is ignored: PostgreSQL 18 sends them, even at protocol version 1.

Source: PostgreSQL's ``src/backend/replication/logical/worker.c`` (``apply_dispatch`` and what
it calls) and ``src/backend/replication/pgoutput/pgoutput.c``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class State(StrEnum):
    """The state of a connection between two messages."""

    OUTSIDE = "outside of a transaction"
    TRANSACTION = "inside B … C"
    PREPARE = "inside b … P"
    STREAM = "inside S … E"


class StreamState(StrEnum):
    """The state of one transaction in progress between its blocks."""

    UNKNOWN = "not open"
    OPEN = "open"


class Event(StrEnum):
    """What a message does to its transaction."""

    OPENED = "opened"  # B, b, the first S
    RESUMED = "resumed"  # another S
    PAUSED = "paused"  # E
    CONTENT = "content"  # O R Y I U D T M
    SUBTRANSACTION_ABORTED = "subtransaction aborted"  # A of a subtransaction
    ABORTED = "aborted"  # A of the whole
    COMMITTED = "committed"  # C, c
    PREPARED = "prepared"  # P, p
    COMMIT_PREPARED = "commit prepared"  # K
    ROLLBACK_PREPARED = "rollback prepared"  # r
    STANDALONE = "standalone"  # M that is not transactional
    IGNORED = "ignored"  # A of a transaction that is not open


STANDALONE = "M, not transactional"
"""The name under which :data:`TRANSITIONS` knows a message that belongs to no transaction."""

FIRST_BLOCK = "S, the first"
SUBTRANSACTION_ABORT = "A of a subtransaction"
"""The names under which :data:`STREAM_TRANSITIONS` knows two special cases."""

_CONTENT = "ORYIUDTM"

TRANSITIONS: Mapping[State, Mapping[str, tuple[State, Event]]] = MappingProxyType(
    {
        State.OUTSIDE: {
            "B": (State.TRANSACTION, Event.OPENED),
            "b": (State.PREPARE, Event.OPENED),
            "S": (State.STREAM, Event.OPENED),
            "c": (State.OUTSIDE, Event.COMMITTED),
            "p": (State.OUTSIDE, Event.PREPARED),
            "A": (State.OUTSIDE, Event.ABORTED),
            "K": (State.OUTSIDE, Event.COMMIT_PREPARED),
            "r": (State.OUTSIDE, Event.ROLLBACK_PREPARED),
            STANDALONE: (State.OUTSIDE, Event.STANDALONE),
        },
        State.TRANSACTION: {
            **dict.fromkeys(_CONTENT, (State.TRANSACTION, Event.CONTENT)),
            "C": (State.OUTSIDE, Event.COMMITTED),
        },
        State.PREPARE: {
            **dict.fromkeys(_CONTENT, (State.PREPARE, Event.CONTENT)),
            "P": (State.OUTSIDE, Event.PREPARED),
        },
        State.STREAM: {
            **dict.fromkeys(_CONTENT, (State.STREAM, Event.CONTENT)),
            "E": (State.OUTSIDE, Event.PAUSED),
        },
    }
)
"""State, message -> state, event. Every other message is illegal."""

STREAM_TRANSITIONS: Mapping[StreamState, Mapping[str, tuple[StreamState, Event]]] = (
    MappingProxyType(
        {
            StreamState.UNKNOWN: {
                FIRST_BLOCK: (StreamState.OPEN, Event.OPENED),
                "A": (StreamState.UNKNOWN, Event.IGNORED),
                SUBTRANSACTION_ABORT: (StreamState.UNKNOWN, Event.IGNORED),
            },
            StreamState.OPEN: {
                "S": (StreamState.OPEN, Event.RESUMED),
                "c": (StreamState.UNKNOWN, Event.COMMITTED),
                "p": (StreamState.UNKNOWN, Event.PREPARED),
                "A": (StreamState.UNKNOWN, Event.ABORTED),
                SUBTRANSACTION_ABORT: (StreamState.OPEN, Event.SUBTRANSACTION_ABORTED),
            },
        }
    )
)
"""The same for each transaction in progress; for its messages, this event counts."""


class Step(NamedTuple):
    """What a message did to its transaction.

    Attributes:
        xid: the top-level transaction's xid; None for a message outside of transactions.
        length: how many content messages of the transaction are valid now. A caller that keeps them
            appends at CONTENT, and drops those from ``length`` on at SUBTRANSACTION_ABORTED.
        relations: at a stream's commit, the OIDs of all relations that it announced.
        joining: those of them whose announcement becomes valid for the connection.
    """

    event: Event
    xid: int | None
    length: int
    relations: frozenset[int] = frozenset()
    joining: frozenset[int] = frozenset()
