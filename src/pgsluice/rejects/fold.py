"""What rejects a table has after some events: a pure function.

A reject is *open* while the row has the value at the source. It is resolved by the change that
gives the column another value, or that deletes the row. A change that repeats the value (the server
sends all values of a row) is no second reject.

The rejects of a table follow from its events alone. So events that are folded again make the same
rejects, whatever has been folded since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pgsluice.rejects.events import Event, Kind


class Reject(NamedTuple):
    """A row of the rejects table, in the order of its columns.

    Attributes:
        relation: OID of the table, or of the partition root.
        namespace, name: those of the target.
        column: the column.
        key: the row's key, as JSON.
        position, ordinal: those of the change that brought the value; for a copy, its snapshot's.
        text: the value, as PostgreSQL prints it.
        time: when the change was committed, or the copied row was read, in microseconds since
            1970.
        resolved_position: the position of the change that ended it; None: it is open.
        resolved_at: the same change's time.
    """

    relation: int
    namespace: str
    name: str
    column: str
    key: str
    position: int
    ordinal: int
    text: str
    time: int
    resolved_position: int | None = None
    resolved_at: int | None = None

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """The column, key, position and ordinal, which tell the reject from all others of its
        table."""
        return self.column, self.key, self.position, self.ordinal

    @property
    def is_open(self) -> bool:
        """Whether the source's row still has the value."""
        return self.resolved_position is None

    def is_open_at(self, position: int) -> bool:
        """Whether the source's row had the value at a position."""
        ended = self.resolved_position
        return self.position <= position and (ended is None or ended > position)


class TableRejects:
    """The rejects of one table: those that the rejects table has (``stored``), and new ones."""

    def __init__(
        self, relation: int, namespace: str, name: str, stored: Iterable[Reject] = ()
    ) -> None:
        self._of_table = (relation, namespace, name)
        self._stored = {each.identity: each for each in stored}
        self._changed: dict[tuple[str, str, int, int], Reject] = {}

    @property
    def open_count(self) -> int:
        """How many values of the table are rejected, and not replaced since."""
        return sum(each.is_open for each in self._stored.values())

    @property
    def changed(self) -> list[Reject]:
        """Those that differ from what the rejects table has."""
        return list(self._changed.values())

    def fold(self, events: Sequence[Event], after: int | None) -> None:
        """Fold all events of the table after a position, in order; None: they are those of a whole
        copy."""
        if not events:
            return
        state = _State(self._stored.values(), after)
        for event in events:
            state.apply(event, self._of_table)
        state.end()
        last = events[-1].position
        for made in state.touched.values():
            have = self._stored.get(made.identity)
            if have is not None:
                # Later events, which are folded already, may have resolved it.
                is_later = have.resolved_position is not None and have.resolved_position > last
                made = made._replace(
                    namespace=have.namespace,
                    name=have.name,
                    time=have.time,
                    resolved_position=have.resolved_position
                    if is_later
                    else made.resolved_position,
                    resolved_at=have.resolved_at if is_later else made.resolved_at,
                )
            if made != have:
                self._stored[made.identity] = self._changed[made.identity] = made


class _State:
    """The open rejects between two events; ``touched``: those that events made or resolved, by
    identity."""

    def __init__(self, stored: Iterable[Reject], after: int | None) -> None:
        self.touched: dict[tuple[str, str, int, int], Reject] = {}
        self._open: dict[str, dict[str, Reject]] = {}
        self._unrepeated: set[tuple[str, str]] = set()
        self._copy: Event | None = None
        for each in stored:
            # The events of a copy follow everything before it.
            if each.is_open if after is None else each.is_open_at(after):
                opened = each._replace(resolved_position=None, resolved_at=None)
                self._open.setdefault(each.key, {})[each.column] = opened

    def apply(self, event: Event, of_table: tuple[int, str, str]) -> None:
        match event.kind:
            case Kind.EMPTIED:
                for key in list(self._open):
                    self._resolve(event, key)
            case Kind.COPIED:
                self._copy = event
                self._unrepeated = {
                    (key, column) for key, columns in self._open.items() for column in columns
                }
            case Kind.MOVED:
                if (old := self._open.get(event.text, {}).get(event.column)) is not None:
                    self._reject(event._replace(text=old.text), of_table)
            case Kind.GONE:
                self._resolve(event, event.key)
            case Kind.REJECTED:
                self._reject(event, of_table)
            case Kind.FITS:
                self._resolve(event, event.key, event.column)

    def end(self) -> None:
        """Resolve what a copy has not repeated."""
        if self._copy is not None:
            for key, column in self._unrepeated:
                self._resolve(self._copy, key, column)

    def _reject(self, event: Event, of_table: tuple[int, str, str]) -> None:
        self._unrepeated.discard((event.key, event.column))
        have = self._open.get(event.key, {}).get(event.column)
        if have is not None:
            if have.text == event.text:
                return
            self._resolve(event, event.key, event.column)
        made = Reject(
            *of_table,
            event.column,
            event.key,
            event.position,
            event.ordinal,
            event.text,
            event.time,
        )
        self._open.setdefault(event.key, {})[event.column] = made
        self.touched[made.identity] = made

    def _resolve(self, event: Event, key: str, column: str = "") -> None:
        """Resolve the open rejects of a row, or of one of its columns."""
        of_row = self._open.get(key, {})
        for name in [column] if column else list(of_row):
            if (have := of_row.pop(name, None)) is not None:
                resolved = have._replace(resolved_position=event.position, resolved_at=event.time)
                self.touched[have.identity] = resolved
