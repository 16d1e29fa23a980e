"""Chooses the writer of a target by its mode."""

from __future__ import annotations

from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.history_fence import HistoryWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.log_fence import LogWriter
from pgsluice.sinks.marking_fence import MarkingWriter


def table_writer(sink: Sink, table: TargetTable, identity: TargetIdentity) -> TableWriter:
    """The writer of a target in its mode."""
    if identity.mode.log is not None:
        return LogWriter(sink, table, identity)
    if identity.mode.history is not None:
        return HistoryWriter(sink, table, identity)
    if identity.mode.deleted_column is not None:
        return MarkingWriter(sink, table, identity)
    return TableWriter(sink, table, identity)
