"""The columns that the source declares: a table's own, the envelope's, the change columns.

Declared as DDL, because the data source says its schema where no session exists.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.errors import ConfigError
from pgsluice.spark.options import SourceOptions

CHANGE_COLUMNS = (
    ("change_type", "STRING"),
    ("commit_version", "BIGINT"),
    ("commit_timestamp", "TIMESTAMP"),
    ("ordinal", "BIGINT"),
    ("xid", "BIGINT"),
    ("absent", "ARRAY<STRING>"),
)
"""Names without the prefix; what they mean is in the manual's page on the source."""

ENVELOPE_COLUMNS = (
    ("schema", "STRING"),
    ("table", "STRING"),
    ("key", "VARIANT"),
    ("row", "VARIANT"),
    ("prefix", "STRING"),
    ("content", "BINARY"),
)
"""``prefix`` and ``content`` are a logical message's; a change has the others."""


def envelope_ddl(options: SourceOptions) -> str:
    """All tables as rows of one shape."""
    return _ddl(ENVELOPE_COLUMNS, options)


def table_ddl(columns: Iterable[tuple[str, str]], options: SourceOptions) -> str:
    """One table.

    Args:
        columns: names and Spark types of the table's own columns.
        options: for the prefix of the change columns.

    Raises:
        ConfigError: two columns have one name, as Spark compares names.
    """
    return _ddl(columns, options)


def _ddl(columns: Iterable[tuple[str, str]], options: SourceOptions) -> str:
    prefix = options.change_column_prefix
    declared = [*columns, *((prefix + name, kind) for name, kind in CHANGE_COLUMNS)]
    seen: set[str] = set()
    for name, _ in declared:
        if name.lower() in seen:
            raise ConfigError(
                f'two columns are named "{name}" without regard to case',
                hint="choose another change_column_prefix, or rename the column at the source",
                column=name,
            )
        seen.add(name.lower())
    return ", ".join(f"{quote(name)} {kind}" for name, kind in declared)


def quote(name: str) -> str:
    """A name as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"
