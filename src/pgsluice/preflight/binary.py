"""With ``binary = true``: finds columns that the server cannot send, or pgsluice cannot read.

The server sends a value in binary form if its type has a send function. Arrays, ranges and
composites always have one, but it fails if a type inside has none (aclitem): pgoutput then fails at
that row each time. Some binary forms have less information than the text form (reg* types are sent
as OIDs), or only their extension can decode them. Source: ``logicalrep_write_tuple`` in
src/backend/replication/logical/proto.c; ``array_send``.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.preflight.facts import SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning

_TEXT = "remove binary from [source]: the server then sends text, which is exact for every type"


def check_binary(facts: SourceFacts) -> Iterator[Finding]:
    """Whether every published column can be sent and read in binary form."""
    if facts.column_types is None:
        return
    unsendable = [t for t in facts.column_types if t.is_inside and not t.is_sent]
    unreadable = [t for t in facts.column_types if t.is_sent and not t.is_read]
    for column_type in unsendable:
        yield error(
            "binary",
            f"column {column_type.shown}: type {column_type.type_name} inside another type has no "
            "binary form. The server stops sending changes of all tables at the first such row",
            _TEXT,
        )
    for column_type in unreadable:
        yield warning(
            "binary",
            f"column {column_type.shown}: pgsluice cannot convert the binary form of type "
            f"{column_type.type_name} to text. The first such value parks the table",
            _TEXT,
        )
    if not unsendable and not unreadable:
        yield ok("binary", "every published column has an exact binary form, or is sent as text")
