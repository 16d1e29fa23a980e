"""Capture: receives changes from the slot, makes them durable in the spool, and acknowledges them.

An LSN is acknowledged only after its bytes are durable in the spool; no default argument here
acknowledges anything. One process serves one slot; ``run``, the Spark source or the user starts it.
"""

from pgsluice.capture.child import CaptureProcess
from pgsluice.capture.health import read_health
from pgsluice.capture.process import run_capture
from pgsluice.capture.source.first_start import PreparedSource, await_spool, prepare_source
