"""``pgsluice run --once`` without a JVM, as a process that a failpoint may kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.local_spark import use_local_spark
from tests.support.waiting import HANGS_S

from pgsluice.config import load_config
from pgsluice.subscription.running.run import run

ROOT = Path(__file__).parents[2]


def run_killed_at(config: Path, failpoint: str) -> int:
    """Run a configuration with a failpoint that kills the process; its exit code."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.local_run", str(config)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PGSLUICE_FAILPOINTS": f"{failpoint}=kill"},
        capture_output=True,
        timeout=HANGS_S,
    )
    return ended.returncode


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        use_local_spark(patch)
        run(load_config(Path(sys.argv[1])), once=True)
