"""Tables of Parquet files, whatever the format that lists the files: a version of a table, rows by
their keys, files that are written, and what a batch or upkeep makes of a version (:mod:`.edit`).

A format reads the versions (:class:`.snapshot.Snapshot`), and commits an edit as its next one. What
it knows stays in its own folder, such as :mod:`pgsluice.sinks.delta`.
"""
