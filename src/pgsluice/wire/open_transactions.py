"""The state of the transaction machine: announcements, and the open transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgsluice.wire.messages import Relation, Type


@dataclass(frozen=True, slots=True)
class Announcement:
    """An R or Y that was received.

    Attributes:
        serial: rises with each announcement on the connection.
        index: the message's place in its transaction's content.
    """

    message: Relation | Type
    serial: int
    index: int


class Scope:
    """The newest announcement of each relation and type, for a connection or for one stream."""

    __slots__ = ("relations", "types")

    def __init__(self) -> None:
        self.relations: dict[int, Announcement] = {}
        self.types: dict[int, Announcement] = {}

    def add(self, announcement: Announcement) -> None:
        message = announcement.message
        of_its_kind = self.relations if isinstance(message, Relation) else self.types
        of_its_kind[message.oid] = announcement


@dataclass(slots=True)
class Transaction:
    """The open transaction.

    Attributes:
        ending: what its C or P has to repeat.
        length: how many content messages it has.
    """

    xid: int
    ending: tuple[object, ...] = ()
    length: int = 0


@dataclass(slots=True)
class Stream(Transaction):
    """A transaction in progress.

    Attributes:
        first_index: subtransaction's xid -> index of its first message.
        history: every announcement that is valid, oldest first.
        scope: the newest of them.
    """

    first_index: dict[int, int] = field(default_factory=dict)
    history: list[Announcement] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)

    def announce(self, announcement: Announcement) -> None:
        self.history.append(announcement)
        self.scope.add(announcement)

    def abort(self, subxid: int) -> None:
        """Invalidate everything from the subtransaction's first message on."""
        start = self.first_index.get(subxid)
        if start is None:
            return
        self.length = start
        self.first_index = {xid: i for xid, i in self.first_index.items() if i < start}
        valid = [each for each in self.history if each.index < start]
        self.history, self.scope = [], Scope()
        for announcement in valid:
            self.announce(announcement)
