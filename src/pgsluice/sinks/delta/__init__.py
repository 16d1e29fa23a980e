"""Delta tables, written natively with deltalake: no JVM, no jar.

:class:`.sink.DeltaSink` opens tables, :class:`.handle.DeltaHandle` is an opened one. Commits
carry the position as :mod:`.commit_marker` says. Nothing is imported here: a configuration is
read also where deltalake is not installed.
"""
