"""From the slot into the spool: receive, make durable, acknowledge.

An LSN is acknowledged only after its bytes are durable in the spool; nothing here has a
default that acknowledges. One process does it for one slot: started by ``run``, by the Spark
source, or alone.
"""

from pgsluice.capture.child import CaptureProcess
from pgsluice.capture.health import read_health
from pgsluice.capture.process import run_capture
from pgsluice.capture.source.slot import PreparedSource, prepare_source

__all__ = [
    "CaptureProcess",
    "PreparedSource",
    "prepare_source",
    "read_health",
    "run_capture",
]
