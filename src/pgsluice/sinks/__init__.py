"""Targets: one module or folder each, one contract (:mod:`pgsluice.sinks.contract`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pgsluice.config import parse_sink

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Sink


def make_sink(options: Mapping[str, Any]) -> Sink:
    """Create the sink of a subscription.

    Args:
        options: the section ``sink = { type = "…", … }`` with the subscription's
            ``foreign_writes`` and ``cut_retention_s``.

    Raises:
        ConfigError: there is no such type, its options are wrong, or a required package is not
            installed.
    """
    own = dict(options)
    foreign_writes = own.pop("foreign_writes", "park")
    cut_retention_s = own.pop("cut_retention_s", 600.0)
    config = parse_sink(own)
    made = config.make(foreign_writes=foreign_writes, cut_retention_s=cut_retention_s)
    return cast("Sink", made)
