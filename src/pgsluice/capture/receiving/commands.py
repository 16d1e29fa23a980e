"""What the store is told to do: calls of the spool's writer, one durable before the next begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeAlias

from pgsluice.spool import SpoolWriter
from pgsluice.spool.segments.parts_writer import PartsWriter

P = ParamSpec("P")
Command: TypeAlias = Callable[[SpoolWriter], object]
"""Runs on the store's thread."""


def to_writer(
    method: Callable[Concatenate[SpoolWriter, P], object], *args: P.args, **kwargs: P.kwargs
) -> Command:
    """A call of a method of the writer."""
    return lambda writer: method(writer, *args, **kwargs)


def to_parts(
    method: Callable[Concatenate[PartsWriter, P], object], *args: P.args, **kwargs: P.kwargs
) -> Command:
    """A call of a method of the writer of transactions in parts."""
    return lambda writer: method(writer.parts, *args, **kwargs)
