"""What PostgreSQL can compute and pgsluice cannot do exactly."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.publication.row_filter.nodes import Node

SERVER_CAN = "a publication of the server (PostgreSQL 15 or newer) can filter by it"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why an expression is refused.

    Attributes:
        node: the first one that cannot be computed.
        reason: a sentence.
        way_out: what the user can do instead.
    """

    node: Node
    reason: str
    way_out: str = SERVER_CAN


class CannotCompute(Exception):
    """An expression has a node that cannot be computed exactly."""

    def __init__(self, unsupported: Unsupported) -> None:
        super().__init__(unsupported.reason)
        self.unsupported = unsupported
