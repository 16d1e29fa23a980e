"""Reduces the typed changes of a table to the last state of each key.

:func:`pgsluice.changes.net.net_changes` is the entry point. Sinks that keep the current state of a
table apply its result; sinks that keep every change do not use this room.
"""
