"""Names of tables as users type them."""

from __future__ import annotations

from collections.abc import Collection

from pgsluice.config.validation_errors import nearest

_MOST_NAMES = 10


def nearest_table(name: str, titles: Collection[str]) -> str:
    """A hint for a name that no table has: the nearest one, or the first of those that exist."""
    by_name = {title.partition(".")[2]: title for title in titles}
    bare = name.rpartition(".")[2]
    if close := nearest(bare, by_name):
        return f"did you mean {by_name[close]}?"
    if not titles:
        return "no table is known yet: pgsluice run CONFIG makes them known"
    first = ", ".join(sorted(titles)[:_MOST_NAMES])
    more = len(titles) - _MOST_NAMES
    return f"there are: {first}" + (f" and {more} more" if more > 0 else "")
