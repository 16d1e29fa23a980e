"""pgoutput's options in START_REPLICATION, and the server versions that support them.

Source: the manual, section "Logical Streaming Replication Parameters";
src/backend/replication/pgoutput/pgoutput.c (``parse_output_parameters``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pgsluice.errors import SourceRefused
from pgsluice.sql import quote_literal

Streaming = Literal["off", "on", "parallel"]
Origin = Literal["any", "none"]


def newest_proto_version(server_version: int) -> int:
    """The newest version of pgoutput's protocol that a server supports, by libpq's number of its
    version, such as 180004."""
    major = server_version // 10000
    return 4 if major >= 16 else 3 if major >= 15 else 2 if major >= 14 else 1


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """The options that pgsluice requests.

    Attributes:
        publication_names: unquoted; at least one.
        proto_version: None: the newest that the server supports.
        streaming: None: ``parallel`` from 16, ``on`` in 14 and 15, else ``off``. It is ``off`` if
            the chosen ``proto_version`` is too low, and with ``messages``: in a stream a message
            carries only the top-level transaction's xid, so a message of a rolled-back savepoint
            cannot be told from the others.
        two_phase: send prepared transactions at PREPARE; the slot must be a two-phase one.
        binary: send values in binary form where their type has one.
        messages: send the messages of pg_logical_emit_message.
        origin: ``none``: do not send changes that came to the server by replication.
    """

    publication_names: tuple[str, ...]
    proto_version: int | None = None
    streaming: Streaming | None = None
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Origin = "any"

    def resolve(self, server_version: int) -> PgoutputOptions:
        """Fill in the defaults for a server; raises SourceRefused if it, or the chosen protocol
        version, does not support an option."""
        major = server_version // 10000
        newest = newest_proto_version(server_version)
        proto = self.proto_version or newest
        best: Streaming = "parallel" if proto >= 4 else "on" if proto >= 2 else "off"
        streaming = self.streaming or ("off" if self.messages else best)
        checks = (
            (proto > newest, f"proto_version {proto}", f"{newest} is its newest"),
            (streaming == "on" and proto < 2, "streaming = on", "it needs proto_version 2 (14+)"),
            (
                streaming == "parallel" and proto < 4,
                "streaming = parallel",
                "it needs proto_version 4 (16+)",
            ),
            (self.two_phase and proto < 3, "two_phase", "it needs proto_version 3 (15+)"),
            (self.binary and major < 14, "binary", "it needs PostgreSQL 14"),
            (self.messages and major < 14, "messages", "it needs PostgreSQL 14"),
            (self.origin == "none" and major < 16, "origin = none", "it needs PostgreSQL 16"),
            (not self.publication_names, "a stream without publications", "name at least one"),
        )
        for is_refused, option, why in checks:
            if is_refused:
                raise SourceRefused(f"PostgreSQL {major} cannot do {option}", hint=why)
        return replace(self, proto_version=proto, streaming=streaming)

    def to_command(self, server_version: int) -> str:
        """The list of options in parentheses, without options that the server does not know; raises
        as :meth:`resolve`."""
        resolved = self.resolve(server_version)
        names = ",".join(quote_identifier(name) for name in resolved.publication_names)
        options = {
            "proto_version": str(resolved.proto_version),
            "publication_names": names,
        }
        if resolved.streaming != "off":
            options["streaming"] = resolved.streaming or "off"
        for name in ("two_phase", "binary", "messages"):
            if getattr(resolved, name):
                options[name] = "true"
        if resolved.origin != "any":
            options["origin"] = resolved.origin
        return f"({', '.join(f'{name} {quote_literal(each)}' for name, each in options.items())})"


def quote_identifier(name: str) -> str:
    """Quote an identifier for replication commands and for publication_names."""
    return '"' + name.replace('"', '""') + '"'
