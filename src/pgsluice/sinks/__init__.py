"""Targets: one module or folder each, one contract (:mod:`pgsluice.sinks.contract`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgsluice.errors import ConfigError
from pgsluice.sinks.contract import Sink

_LATER = {"postgres": "the sink to another PostgreSQL", "iceberg": "the Iceberg sink"}


def make_sink(config: Mapping[str, Any]) -> Sink:
    """Make the sink that a subscription's ``sink = { type = … }`` names.

    Args:
        config: ``type``, and what that type takes. For ``delta``: ``path`` with ``{schema}``
            and ``{table}``, ``engine``, ``foreign_writes`` (``park`` or ``allow``).

    Raises:
        ConfigError: there is no such sink, it comes in a later version, or what it needs is
            not installed.
    """
    options = dict(config)
    kind = options.pop("type", None)
    if kind == "delta":
        return _make_delta(options)
    if kind in _LATER:
        raise ConfigError(
            f"{_LATER[kind]} comes in a later version", hint='use type = "delta" for now'
        )
    raise ConfigError(f"there is no sink of type {kind!r}", hint='types: "delta"')


def _make_delta(options: dict[str, Any]) -> Sink:
    engine = options.pop("engine", "auto")
    if engine == "spark":
        raise ConfigError(
            'engine = "spark" for Delta comes in a later version',
            hint='use engine = "native" or "auto"',
        )
    if engine not in ("auto", "native"):
        raise ConfigError(f"there is no engine {engine!r} for Delta", hint='use "auto" or "native"')
    try:
        from pgsluice.sinks.delta import DeltaSink
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the Delta sink needs a package that is not installed: {error.name}",
            hint="pip install 'pgsluice[delta]'",
        ) from error
    try:
        return DeltaSink(**options)
    except TypeError as error:
        raise ConfigError(f"the Delta sink does not take these options: {error}") from error
