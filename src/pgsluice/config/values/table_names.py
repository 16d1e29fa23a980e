"""Parses the names of tables that users type, by the same rules for all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from pgsluice.config.validation_errors import nearest
from pgsluice.errors import ConfigError
from pgsluice.shown import first_names, shown

TableName = tuple[str, str]
"""Schema and table."""
_MOST_NAMES = 10
_PUBLIC = "public"
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')


def table_named(given: str, tables: Collection[TableName], missing: str) -> TableName:
    """The table that a user means by ``orders``, ``sales.orders``, ``"Order Lines"`` or ``ORDERS``.

    A name as in messages has priority, then a name as in SQL, then a name in any case or schema if
    only one table matches. Without a schema, ``public`` has priority.

    Args:
        missing: the error's sentence if no table matches.

    Raises:
        ConfigError: no table matches, or several do; the hint has the nearest ones.
    """
    for means in _readings(given):
        if found := sorted(filter(means, tables)):
            if len(found) == 1:
                return found[0]
            titles = ", ".join(map(_title, found))
            raise ConfigError(
                f"the name {given} matches several tables",
                hint=f"write the name of one of them: {titles}",
            )
    raise ConfigError(missing, hint=nearest_table(given, [_title(table) for table in tables]))


def _readings(given: str) -> Iterator[Callable[[TableName], bool]]:
    """The possible meanings of the name, the likeliest first."""
    yield lambda table: given in (".".join(table), _title(table))
    yield lambda table: table[0] == _PUBLIC and given in (table[1], shown(table[1]))
    if parts := sql_parts(given):
        full = parts if len(parts) == 2 else [_PUBLIC, *parts]
        yield lambda table: list(table) == full
        if len(parts) == 1:
            yield lambda table: table[1] == parts[0]
    yield lambda table: given in (table[1], shown(table[1]))
    if '"' not in given:
        yield lambda table: _title(table).lower() == given.lower()
        yield lambda table: shown(table[1]).lower() == given.lower()


def sql_parts(given: str) -> list[str] | None:
    """Parse one or two names as in SQL: quoted names unchanged, others in lower case."""
    parts, at = [], 0
    while match := _PART.match(given, at):
        quoted, plain = match.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else plain.lower())
        at = match.end() + 1
        if match.end() == len(given):
            return parts if len(parts) <= 2 else None
        if given[match.end()] != ".":
            return None
    return None


def publication_named(given: str, names: Collection[str]) -> str | None:
    """The publication that a user means, by the same rules as for tables."""
    parts = sql_parts(given) or [given]
    same = [name for name in names if name.lower() == given.lower()]
    known = (name for name in (given, parts[0]) if name in names)
    return next(known, same[0] if len(same) == 1 else None)


def _title(table: TableName) -> str:
    return shown(".".join(table))


def nearest_table(name: str, titles: Collection[str]) -> str:
    """A hint for a name that matches no table: the nearest one, or the first existing ones."""
    by_name = {title.partition(".")[2]: title for title in titles}
    bare = name.rpartition(".")[2]
    if close := nearest(bare, by_name):
        return f"did you mean {by_name[close]}?"
    if not titles:
        return "pgsluice knows no tables yet: `pgsluice run CONFIG` discovers them"
    return f"the tables are: {first_names(sorted(titles), _MOST_NAMES)}"
