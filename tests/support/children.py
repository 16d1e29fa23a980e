"""Child processes of tests, forked from one process that has imported everything they use.

Each worker of the tests has one fork server; what is preloaded is said here, once for all tests.
"""

from __future__ import annotations

import multiprocessing

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["pgsluice.capture", "tests.support.forked_capture", "hypothesis.strategies"]
)
