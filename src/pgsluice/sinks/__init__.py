"""Targets: one module or folder each, one contract (:mod:`pgsluice.sinks.contract`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pgsluice.config import parse_sink
from pgsluice.config.values.target_names import TargetNames

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Sink


def make_sink(options: Mapping[str, Any]) -> Sink:
    """Create the sink of a subscription.

    Args:
        options: the section ``sink = { type = "…", … }`` with the subscription's
            ``foreign_writes``, ``cut_retention_s`` and ``rename``.

    Raises:
        ConfigError: there is no such type, its options are wrong, or a required package is not
            installed.
    """
    own = dict(options)
    foreign_writes = own.pop("foreign_writes", "park")
    cut_retention_s = own.pop("cut_retention_s", 600.0)
    names = TargetNames(own.pop("rename", {}))
    config = parse_sink(own).with_names(names)
    made = config.make(foreign_writes=foreign_writes, cut_retention_s=cut_retention_s)
    if not names.rename:
        return cast("Sink", made)
    from pgsluice.sinks.renamed import RenamingSink

    return RenamingSink(cast("Sink", made), names)
