"""Whether an object store answers, asked once and without waiting for long."""

from __future__ import annotations

import threading

from deltalake import DeltaTable

from pgsluice.shown import one_line

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
    problems: list[str] = ["it did not answer in time"]

    def ask() -> None:
        try:
            DeltaTable.is_deltatable(
                f"{path.partition('{')[0].rstrip('/')}/pgsluice_check", storage_options=_ONCE
            )
        except Exception as error:  # deltalake raises OSError, ValueError and its own errors
            problems.append(one_line(str(error)))
        else:
            problems.clear()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return problems[-1] if problems else None
