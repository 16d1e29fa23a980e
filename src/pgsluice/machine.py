"""Which machine a task works on, if it is not the driver's: errors of executors say it.

A folder or a store that the driver sees may be missing on one executor only, and the error comes
to a user who looks at the driver.
"""

from __future__ import annotations

import socket


class _Here:
    """What this process knows of itself."""

    executor: str | None = None


def begin_task(driver: str) -> None:
    """Say that this process does a task of a driver, by the name of the driver's machine."""
    here = socket.gethostname()
    _Here.executor = None if here == driver else here


def executor() -> str | None:
    """The name of this machine, if it is an executor's; None: this is the driver's."""
    return _Here.executor


def naming_machine(message: str) -> str:
    """A message with this machine in its first line, if it is an executor's."""
    if _Here.executor is None or _Here.executor in message:
        return message
    first, *others = message.split("\n")
    return "\n".join([f"{first} (on the executor {_Here.executor})", *others])
