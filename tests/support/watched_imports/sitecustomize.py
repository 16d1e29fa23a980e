"""Notes which modules of a process are first imported by another thread than its main one.

A process whose PYTHONPATH has this folder writes their names to the file that ``WATCHED_IMPORTS``
names, if it is a run of pgsluice or the program of a test.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGES = {"deltalake", "numpy", "pgsluice", "py4j", "pyarrow", "pyspark"}


class Watch:
    """An importer that finds nothing, and notes what is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        thread = threading.current_thread()
        if thread is not threading.main_thread() and name.partition(".")[0] in PACKAGES:
            with Path(os.environ["WATCHED_IMPORTS"]).open("a") as file:
                file.write(f"{name} in {thread.name}\n")
        return None


if {"run", "-c"} & set(sys.orig_argv) and "WATCHED_IMPORTS" in os.environ:
    sys.meta_path.insert(0, Watch())
