"""The run that is killed, in a child: forked from a process that has imported all it uses."""

from __future__ import annotations

import multiprocessing
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path

import pytest
from tests.support.children import CHILDREN, PRELOADED
from tests.support.forked_capture import ForkedCapture
from tests.support.local_spark import use_local_spark

from pgsluice import failpoints
from pgsluice.config import load_config
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.running.run import run

_USED = (
    "pandas",
    "pgsluice.copy.job",
    "pgsluice.publication",
    "pgsluice.row_filter.evaluate",
    "pgsluice.sinks.delta.handle",
    "pgsluice.sinks.delta.keeping",
    "pgsluice.subscription.running.driver",
    "pgsluice.subscription.running.loop",
    "pgsluice.subscription.running.reloading",
    "pgsluice.verification",
)
"""What a run imports when it first needs it."""

for _name in _USED:
    import_module(_name)


WAITS = Waits(cuts_apart_s=0.0)
"""With a checkpoint at each chance."""


def preload() -> None:
    """Have the process from which children are forked import this module, if it has not begun."""
    CHILDREN.set_forkserver_preload([*PRELOADED, __name__])


def fork_server() -> str:
    """The address of the process that forks children."""
    address: str = forkserver._forkserver._forkserver_address
    return address


def run_until(config: Path, failpoint: str, large: bool, server: str) -> None:
    """A run in a process that is killed at a failpoint; its tasks are in the process, too.

    Args:
        server: forks its capture, as it forked this process.
    """
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    forkserver._forkserver._forkserver_address = server
    forkserver._forkserver.ensure_running = lambda: None
    patch = pytest.MonkeyPatch()
    prepare(patch, large=large)
    patch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    failpoints.arm(failpoint)
    run(load_config(config), once=True, waits=WAITS)


def prepare(patch: pytest.MonkeyPatch, *, large: bool) -> None:
    """Have runs of this process without a JVM."""
    use_local_spark(patch)
    if large:
        module = "pgsluice.subscription.batches.tasks.large_batch"
        patch.setattr(f"{module}.LARGE_BYTES", 500)
        patch.setattr(f"{module}.PIECE_BYTES", 700)
