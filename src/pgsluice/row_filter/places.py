"""Where each bound node stands in the text, for the caret of an error message.

Source: src/backend/nodes/nodeFuncs.c (exprLocation): of a call or an operator it is the
leftmost place of itself and its arguments.
"""

from __future__ import annotations

from typing import TypeVar

from pgsluice.row_filter.bad_literals import BadLiteral
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.nodes import Array, Node
from pgsluice.row_filter.tree import children
from pgsluice.sql import SqlRefused

_Any = TypeVar("_Any")


class Places:
    """A table beside the tree: nodes are values and do not carry their place."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._kept: list[object] = []  # so that no id is given twice
        self.doubts: list[SqlRefused] = []
        """What only we cannot do exactly: raised once PostgreSQL has nothing to refuse."""

    def put(self, node: _Any, at: int) -> _Any:
        """Remember a node's own place."""
        self._places[id(node)] = at
        self._kept.append(node)
        return node

    def like(self, node: _Any, other: Node, at: int | None = None) -> _Any:
        """A node that was made of another one stands where that does, or at ``at``."""
        found = self._places.get(id(other)) if at is None else at
        return node if found is None else self.put(node, found)

    def own(self, node: Node) -> int | None:
        """The place of the node itself: a COLLATE's keyword."""
        return self._places.get(id(node))

    def of(self, node: Node) -> int | None:
        """The leftmost place of a node and what is below it; None if nobody knows."""
        if isinstance(node, Array):
            return self.own(node)  # IN (…) makes one that stands nowhere
        found = [self._places[id(node)]] if id(node) in self._places else []
        found += [at for child in children(node) if (at := self.of(child)) is not None]
        return min(found, default=None)

    def error(self, message: str, node: Node, detail: str | None = None) -> SqlRefused:
        return SqlRefused(message, detail=detail, position=self.of(node))

    def refusal(self, error: BadLiteral, node: Node) -> SqlRefused:
        """A literal that its type's input refuses, or whose meaning we don't know."""
        kind = FilterNotExact if error.is_ours else SqlRefused
        return kind(
            error.message, detail=error.detail, server_hint=error.hint, position=self.of(node)
        )
