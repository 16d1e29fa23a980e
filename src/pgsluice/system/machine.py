"""The name of the machine that runs a task, for the errors of executors.

A folder or a store may be missing on one executor only. The error names that machine, because the
user reads it on the driver.
"""

from __future__ import annotations

import socket


class _Here:
    """The machine of this process."""

    executor: str | None = None


def begin_task(driver: str) -> None:
    """Note that this process runs a task of a driver on the given machine."""
    here = socket.gethostname()
    _Here.executor = None if here == driver else here


def executor() -> str | None:
    """The name of this machine if it is an executor's; None on the driver's machine."""
    return _Here.executor


def naming_machine(message: str) -> str:
    """Add this machine's name to the first line of a message, if it is an executor's."""
    if _Here.executor is None or _Here.executor in message:
        return message
    first, *others = message.split("\n")
    return "\n".join([f"{first} (on the executor {_Here.executor})", *others])
