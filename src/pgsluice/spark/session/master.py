"""Interprets the URL of Spark's master: whether tasks run on this machine, and how many at once."""

from __future__ import annotations

import os

DEFAULT_MASTER = "local[*]"


def is_local(master: str) -> bool:
    """Whether tasks run on this machine, as the URL of Spark's master says."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int | None:
    """How many tasks a session on this machine runs at once; None: it is on a cluster.

    Args:
        master: the URL, such as ``local``, ``local[4]`` or ``local[*,3]``.
    """
    if not is_local(master):
        return None
    threads = master.removeprefix("local").strip("[]").partition(",")[0] or "1"
    return int(threads) if threads.isdecimal() else os.cpu_count()
