"""What a subscription's configuration means for its tables and its sink."""

from __future__ import annotations

from typing import Any

from pgsluice.config import SubscriptionConfig
from pgsluice.sinks.target import TableOptions
from pgsluice.spool import TargetName
from pgsluice.types import TypeOptions


def table_options(subscription: SubscriptionConfig) -> TableOptions:
    """Types and keys as the configuration has them."""
    defaults = TypeOptions(numeric=subscription.numeric)
    return TableOptions(
        types=defaults,
        overrides={
            column: TypeOptions(numeric=chosen, numeric_always=True)
            for column, chosen in subscription.types.items()
        },
        keys=dict(subscription.key),
    )


def has_same_options(options: TableOptions, first: TargetName, second: TargetName) -> bool:
    """Whether a table's target would be the same under two names."""
    return options.column_overrides(*first) == options.column_overrides(*second) and (
        options.keys.get(".".join(first)) == options.keys.get(".".join(second))
    )


def sink_options(subscription: SubscriptionConfig) -> dict[str, Any]:
    """The sink's section as the sinks take it, with what the subscription says for it."""
    return {
        **subscription.sink.model_dump(mode="json"),
        "foreign_writes": subscription.foreign_writes,
        "cut_retention_s": subscription.cut_retention_s,
    }
