"""A pipeline on a cluster whose machines share nothing but an object store.

Capture, the workers and the driver have folders of their own: capture and each worker are in a
mount namespace with empty file systems over all that the driver writes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.sparks.standalone import Standalone, descendants, isolated, program, restarted
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import Pipeline

DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A batch has a task for each core, and a lost worker's tasks go to the other one.
    "spark.cores.max": "2",
}


def hidden_folders() -> list[Path]:
    """Those that hold what the driver writes: temporary files and caches."""
    hidden = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")}
    hidden |= {each for each in (Path.home() / ".cache",) if each.is_dir()}
    return sorted(hidden)


def on_cluster(one: Pipeline, cluster: Standalone, store: ObjectStore) -> None:
    """Have a pipeline's runs on a cluster, and the spool and the targets in a store; captures run
    apart, and workers are the cluster's."""
    one.spark |= {"spark.master": cluster.url, "spark.executor.memory": "1g", **DRIVER}
    one.run_options = ("--without-capture",)
    one.elsewhere["worker"] = cluster.processes
    one.have_store(store)
    one.have_spool_in_store(store)


@contextmanager
def capture_apart(one: Pipeline) -> Iterator[None]:
    """``pgsluice capture`` on what is another machine, which starts it again when it was killed.

    The configuration is the pipeline's of now; the state folder is that machine's.
    """
    capture = restarted([sys.executable, "-m", "pgsluice", "capture", str(one.path)])
    with_file = ["sh", "-c", 'mkdir -p "$1" && printf %s "$2" >"$3" && shift 3 && exec "$@"', "sh"]
    arguments = [str(one.folder), one.path.read_text(), str(one.path), *capture]
    command = isolated([*with_file, *arguments], hidden_folders())
    log = one.folder / "capture.log"
    with program(command, log, one.folder) as machine:
        one.elsewhere["capture"] = lambda: descendants(machine.pid)
        yield
    assert "Traceback" not in log.read_text(), log
