"""Delta tables, written natively with deltalake: no JVM, no jar.

:class:`DeltaSink` opens tables, :class:`DeltaHandle` is an opened one. Commits carry the
position as :mod:`.commit_marker` says.
"""

from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.sink import DeltaSink

__all__ = ["DeltaHandle", "DeltaSink"]
