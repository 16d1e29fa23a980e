"""Tables of Parquet files, independent of the format: a version of a table, rows by their keys, new
files, and the edit that a batch or upkeep makes of a version (:mod:`.edit`).

A format reads the versions (:class:`.snapshot.Snapshot`), and commits an edit as the next one. Code
of a format is in its own folder, such as :mod:`pgsluice.sinks.delta`.
"""
