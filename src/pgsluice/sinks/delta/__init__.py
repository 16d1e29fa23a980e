"""Delta tables, written natively with deltalake: no JVM, no jar.

:class:`.sink.DeltaSink` opens tables, :class:`.handle.DeltaHandle` is an opened one.
:mod:`.log.commit_marker` defines how commits store the position. This module imports nothing, so
that a configuration can be read without deltalake.
"""
