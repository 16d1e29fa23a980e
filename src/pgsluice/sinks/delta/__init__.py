"""Delta tables, written natively with deltalake: no JVM, no jar.

:class:`DeltaSink` opens tables; :class:`DeltaTableWriter` writes one. What they keep, and how,
is said in :mod:`.stamp` (the position) and :mod:`.writer` (exactly once).
"""

from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.delta.writer import DeltaTableWriter

__all__ = ["DeltaSink", "DeltaTableWriter"]
