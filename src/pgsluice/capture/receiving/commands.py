"""The commands for the store: calls of the spool's writer, each durable before the next one
starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeAlias

from pgsluice.spool import SpoolWriter
from pgsluice.spool.segments.parts_writer import PartsWriter

P = ParamSpec("P")
Command: TypeAlias = Callable[[SpoolWriter], object]
"""Called on the store's thread."""


def to_writer(
    method: Callable[Concatenate[SpoolWriter, P], object], *args: P.args, **kwargs: P.kwargs
) -> Command:
    """A command that calls a method of the spool's writer."""
    return lambda writer: method(writer, *args, **kwargs)


def to_parts(
    method: Callable[Concatenate[PartsWriter, P], object], *args: P.args, **kwargs: P.kwargs
) -> Command:
    """A command that calls a method of the writer of transactions in parts."""
    return lambda writer: method(writer.parts, *args, **kwargs)
