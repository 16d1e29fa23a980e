"""Finds names in a subscription's settings that match no table or column.

Such a setting has no effect. It may be a typo, or be meant for a future table. So it is a warning
of ``pgsluice check`` and of a run's catalog refreshes, and no error, unless it was to hide values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pgsluice.config.model import SubscriptionConfig
from pgsluice.config.validation_errors import near_or_known
from pgsluice.config.values.table_names import nearest_table

HIDING = ("exclude", "mask")
"""The settings that keep values away from targets."""


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name in a setting that matches no table or column.

    Attributes:
        what: a sentence with the setting and the name.
        hint: the nearest name, or some of the existing ones.
        hides: the setting hides values, which would arrive as they are.
    """

    what: str
    hint: str
    hides: bool = False

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.hint}"


def unknown_names(
    subscription: SubscriptionConfig, tables: Mapping[str, Collection[str]]
) -> Iterator[UnknownName]:
    """The names in ``key``, ``types`` and the sink's settings that match no table or column.

    Args:
        tables: ``schema.table`` of each published table -> its columns. If it is empty, something
            else is wrong, and no name counts as unknown.
    """
    if not tables:
        return
    for setting, title, column in _named(subscription, tables):
        if title not in tables:
            what = f'"{setting}" names the table {title}, which is not sent'
            yield UnknownName(what, nearest_table(title, tables), setting in HIDING)
        elif column is not None and column not in tables[title]:
            hint = near_or_known(column, tables[title], "there are")
            what = f'"{setting}" names {column}, which is no column of {title}'
            yield UnknownName(what, hint, setting in HIDING)
    for name in subscription.rename:
        if not any(title == name or title.startswith(f"{name}.") for title in tables):
            yield from _unknown_entry(name, tables)


def _unknown_entry(name: str, tables: Mapping[str, Collection[str]]) -> Iterator[UnknownName]:
    """Why an entry of ``rename``, which is no schema or table, is no column either."""
    title, column = table_and_column(name, tables) if "." in name else ("", name)
    if title not in tables:
        what = f'"rename" names {name}, and no table of this name or schema is sent'
        schemas = {each.partition(".")[0] for each in tables}
        hint = near_or_known(name, schemas, "there are") if not title else None
        yield UnknownName(what, hint or nearest_table(name, tables))
    elif column not in tables[title]:
        what = f'"rename" names {column}, which is no column of {title}'
        yield UnknownName(what, near_or_known(column, tables[title], "there are"))


def _named(
    subscription: SubscriptionConfig, tables: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, str, str | None]]:
    """The names, each once: the setting, the table, and the column if there is one."""
    for title, columns in subscription.key.items():
        for column in columns:
            yield "key", title, column
    of_columns: Mapping[str, Collection[str]] = {
        "types": subscription.types,
        "exclude": subscription.exclude,
        "mask": subscription.mask,
    }
    for setting, names in of_columns.items():
        for name in names:
            yield setting, *table_and_column(name, tables)
    for title in subscription.sink.table_names():
        yield "sink", title, None
    # Columns that only targets have are in no table of the source.
    own = (subscription.change_column_prefix,) if subscription.mode != "current" else ()
    for title, column in subscription.sink.column_names():
        is_own = column.startswith(own) or column == subscription.deleted_column
        if title in tables and not is_own:
            yield "sink", title, column


def table_and_column(name: str, tables: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """Split ``schema.table.column``; each of these names may contain dots."""
    places = [index for index, character in enumerate(name) if character == "."]
    ways = [(name[:index], name[index + 1 :]) for index in places]
    has_table = [way for way in ways if way[0] in tables]
    fitting = [way for way in has_table if way[1] in tables[way[0]]]
    return [*ways, *has_table, *fitting][-1]
