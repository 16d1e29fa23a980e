"""The columns that the source declares: a table's or the envelope's, and the change columns.

The schema is a DDL string: Spark asks the data source for it where no session exists.
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
    ("unfit", "ARRAY<STRING>"),
    ("unfit_text", "MAP<STRING, STRING>"),
)
"""Names without the prefix, and Spark's types; the README says what they mean."""

ENVELOPE_COLUMNS = (
    ("schema", "STRING"),
    ("table", "STRING"),
    ("key", "VARIANT"),
    ("row", "VARIANT"),
    ("prefix", "STRING"),
    ("content", "BINARY"),
)
"""``prefix`` and ``content`` are set for a logical message, the others for a change."""


def envelope_ddl(options: SourceOptions) -> str:
    """The schema of envelope rows, which hold changes of all tables."""
    return table_ddl(ENVELOPE_COLUMNS, options)


def table_ddl(columns: Iterable[tuple[str, str]], options: SourceOptions) -> str:
    """The schema of one table's change rows.

    Args:
        columns: names and Spark types of the table's own columns.
        options: for the prefix of the change columns.

    Raises:
        ConfigError: two columns have the same name for Spark, which ignores case.
    """
    prefix = options.change_column_prefix
    declared = [*columns, *((prefix + name, kind) for name, kind in CHANGE_COLUMNS)]
    seen: set[str] = set()
    for name, _ in declared:
        if name.lower() in seen:
            raise ConfigError(
                f'two columns have the name "{name}", and Spark ignores case',
                hint="choose another change_column_prefix, or rename the column at the source",
                column=name,
            )
        seen.add(name.lower())
    return ", ".join(f"{quote(name)} {kind}" for name, kind in declared)


def quote(name: str) -> str:
    """A name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
