"""The events, as the monitor's own room knows them (they live at the bottom of the house)."""

from pgsluice.events import (
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopyProgress,
    MetricsCallback,
    MetricsEvent,
    TableApplied,
    TableState,
)

__all__ = [
    "BatchFinished",
    "CapturePhase",
    "CaptureState",
    "CopyProgress",
    "MetricsCallback",
    "MetricsEvent",
    "TableApplied",
    "TableState",
]
