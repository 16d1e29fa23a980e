"""Whether an object store answers, asked once and without waiting for long."""

from __future__ import annotations

from functools import partial

from deltalake import DeltaTable

from pgsluice.shown import one_line
from pgsluice.threads import WorkThread

_TIMEOUT_S = 15.0
# As deltalake names them. Its own defaults try again for minutes.
_ONCE = {"max_retries": "0", "connect_timeout": "5s", "timeout": "10s"}


def why_unreachable(path: str) -> str | None:
    """Ask the store for a table below the path's fixed part.

    Args:
        path: a URL with ``{table}`` and perhaps ``{schema}``.

    Returns:
        what went wrong, as one line; None if the store answered.
    """
    table = f"{path.partition('{')[0].rstrip('/')}/pgsluice_check"
    thread = WorkThread(
        "pgsluice store", partial(DeltaTable.is_deltatable, table, storage_options=_ONCE)
    )
    thread.start()
    thread.join(_TIMEOUT_S)
    if thread.is_alive():
        return "it did not answer in time"
    return None if thread.error is None else one_line(str(thread.error))
