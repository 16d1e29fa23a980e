"""Connections to the server: sessions, replication commands, slots, the copy stream.

This room does not interpret the bytes of the stream: :mod:`pgsluice.wire` decodes them, and
:mod:`pgsluice.capture` makes them durable.

The exported names are imported when first used: SQL sessions do not need the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.replication.commands import SystemIdentity
    from pgsluice.replication.connection import ReplicationConnection
    from pgsluice.replication.options import PgoutputOptions
    from pgsluice.replication.refusals import server_message, source_errors, table_errors
    from pgsluice.replication.session import connect_sql
    from pgsluice.replication.slots import takes_failover
    from pgsluice.replication.timeline import TimelineSwitch

__getattr__ = on_demand(
    __name__, ("commands", "connection", "options", "refusals", "session", "slots", "timeline")
)
