"""The whole way of a backlog into Delta with a row filter of ours, against the way without one.

Rates count the rows that the server sends: a filter that drops most of them saves the merge
what it costs itself.
"""

from __future__ import annotations

from bench.report import Line, rate, ratio
from bench.stage import Stage
from bench.streams import WORKLOADS, into_delta
from pgsluice.subscription.running.run import run

ROUNDS = 2
"""The best of so many counts, and the first of them pays for what is not warm yet."""
WORKLOAD = WORKLOADS["one"]
#: By how much of the table it keeps. A number and a text, as in ``n > 10 AND region = 'EU'``.
FILTERS = {
    "everything": "quantity >= 0 AND customer <> 'nobody'",
    "10 %": "quantity < 100 AND customer <> 'nobody'",
}


def measure(stage: Stage) -> list[Line]:
    """One line a filter."""
    with stage.shop() as shop:
        shop.make_table("orders")
        configs = [
            (kept, stage.config(shop, f"filter{turn}{number}", text))
            for turn in range(ROUNDS)
            for number, (kept, text) in enumerate([("", None), *FILTERS.items()])
        ]
        for _, config in configs:
            run(config, once=True)
        WORKLOAD.write(shop, stage.rows)
        rates: dict[str, float] = {}
        for kept, config in configs:
            rates[kept] = max(into_delta(stage, shop, config), rates.get(kept, 0.0))
    plain = rates.pop("")
    return [
        Line(
            ratio(found, plain),
            "",
            f"backlog into Delta `current`, {WORKLOAD.name}, a row filter keeps {kept}",
            rate(found),
            f"without one {rate(plain)}",
        )
        for kept, found in rates.items()
    ]
