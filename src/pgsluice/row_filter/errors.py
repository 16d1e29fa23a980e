"""Errors of filters that PostgreSQL accepts and pgsluice cannot evaluate exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.sql import SqlRefused

if TYPE_CHECKING:
    from pgsluice.row_filter.nodes import Node

SERVER_CAN = "a publication of the server (PostgreSQL 15 or newer) can filter by it"


class FilterNotExact(SqlRefused):
    """PostgreSQL accepts this filter, but pgsluice refuses it, because it cannot evaluate it
    exactly.

    ``detail`` is the reason, ``server_hint`` what the user can do instead.
    """


class CannotCompute(Exception):
    """A node of an expression cannot be computed exactly.

    Attributes:
        node: the first such node.
        way_out: what the user can do instead.
    """

    def __init__(self, node: Node, reason: str, way_out: str = SERVER_CAN) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason
        self.way_out = way_out
