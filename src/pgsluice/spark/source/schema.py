"""The columns that the source declares: a table's or the envelope's, and the change columns.

The schema is a DDL string, because Spark asks for it in a process without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgsluice.config.validation_errors import near_or_known
from pgsluice.errors import ConfigError
from pgsluice.spark.source.options import SnapshotOptions, SourceOptions

CHANGE_COLUMNS = (
    ("change_type", "STRING"),
    ("commit_version", "BIGINT"),
    ("commit_timestamp", "TIMESTAMP"),
    ("ordinal", "BIGINT"),
    ("xid", "BIGINT"),
    ("key", "ARRAY<STRING>"),
    ("absent", "ARRAY<STRING>"),
    ("unfit", "ARRAY<STRING>"),
    ("unfit_text", "MAP<STRING, STRING>"),
)
"""Names without the prefix, and Spark's types; docs/spark-source.md explains them."""

ENVELOPE_COLUMNS = (
    ("schema", "STRING"),
    ("table", "STRING"),
    ("key", "VARIANT"),
    ("row", "VARIANT"),
    ("prefix", "STRING"),
    ("content", "BINARY"),
)
"""``prefix`` and ``content`` are set for logical messages, the others for changes."""


def change_columns(prefix: str) -> list[str]:
    """The names of the change columns of a query's rows, each with the prefix."""
    return [prefix + name for name, _ in CHANGE_COLUMNS]


def columns_before(names: Sequence[str], required: Sequence[str]) -> tuple[str, ...]:
    """A schema's own columns, before the change columns.

    Raises:
        ConfigError: the user gave a schema that does not end with the change columns.
    """
    count = len(names) - len(required)
    if count < 0 or list(names[count:]) != list(required):
        raise ConfigError(
            "the schema given with .schema(...) does not end with the columns "
            f"{', '.join(required)}",
            hint="remove .schema(...): the source declares its columns itself",
        )
    return tuple(names[:count])


def table_ddl(columns: Iterable[tuple[str, str]], options: SourceOptions | SnapshotOptions) -> str:
    """The schema of change rows: of one table, or of envelope rows.

    Args:
        columns: names and Spark types of the table's own columns, or ENVELOPE_COLUMNS.
        options: the query's options, for the prefix of the change columns and the selected columns.

    Raises:
        ConfigError: two columns have the same name for Spark, which ignores case; or the table does
            not have a selected column.
    """
    prefix = options.change_column_prefix
    change_columns = [(prefix + name, kind) for name, kind in CHANGE_COLUMNS]
    declared = [*_asked_for(columns, options), *change_columns]
    seen: set[str] = set()
    for name, _ in declared:
        if name.lower() in seen:
            raise ConfigError(
                f'two columns have the name "{name}" (Spark ignores upper and lower case)',
                hint="set the option change_column_prefix to another prefix, or rename the column "
                "in PostgreSQL",
                column=name,
            )
        seen.add(name.lower())
    return ", ".join(f"{quote(name)} {kind}" for name, kind in declared)


def _asked_for(
    columns: Iterable[tuple[str, str]], options: SourceOptions | SnapshotOptions
) -> Iterable[tuple[str, str]]:
    if options.columns is None:
        return columns
    kinds = dict(columns)
    for name in options.columns:
        if name not in kinds:
            raise ConfigError(
                f'the option columns lists column "{name}", which table {options.table} does not '
                "have",
                hint=near_or_known(name, kinds, "its columns are"),
                option="columns",
            )
    return [(name, kind) for name, kind in kinds.items() if name in options.columns]


def quote(name: str) -> str:
    """A column's name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
