"""Registers tables in the catalog of Spark's session: creates missing ones, never replaces any.

The statements run in the JVM's own session. The next run in this process would mistake a PySpark
session for the user's.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pgsluice.config.values.target_names import CatalogTable
from pgsluice.shown import shown

if TYPE_CHECKING:
    from pyspark import SparkContext

_DETAILS = "# Detailed Table Information"
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}
"""Different schemes for the same stores."""


def register(context: SparkContext, table: CatalogTable) -> str | None:
    """Create the table's schema and the table, if the catalog has no table with its name.

    Args:
        table: a table that exists at its location.

    Returns:
        what the catalog has under this name instead, as text for the user; None: it has the table.

    Raises:
        Exception: an error of Spark.
    """
    session = _session(context)
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {table.sql_schema}")
    location = table.location.replace("\\", "\\\\").replace("'", "\\'")
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {table.sql_name} USING {table.provider} LOCATION '{location}'"
    )
    return _other_than(table, _details(session, table))


def unregister(context: SparkContext, table: CatalogTable) -> str | None:
    """Remove the table from the catalog; its files stay.

    Returns:
        why it cannot be removed, as text for the user; None: the catalog has no such table now.

    Raises:
        Exception: an error of Spark.
    """
    session = _session(context)
    if not session.catalog().tableExists(table.sql_name):
        return None
    details = _details(session, table)
    if (other := _other_than(table, details)) is not None:
        return other
    if details.get("Type") != "EXTERNAL":  # dropping it would delete its files
        return f"it is a table of the type {details.get('Type')}, whose files the catalog owns"
    session.sql(f"DROP TABLE {table.sql_name}")
    return None


def _session(context: SparkContext) -> Any:
    # py4j's views have no types.
    jvm: Any = context._jvm
    return getattr(jvm, "org.apache.spark.sql.classic.SparkSession").builder().getOrCreate()


def _details(session: Any, table: CatalogTable) -> dict[str, str]:
    """The catalog's details of the table, without its columns."""
    rows = session.sql(f"DESCRIBE TABLE EXTENDED {table.sql_name}").collectAsList()
    said = [(str(row.get(0)), str(row.get(1))) for row in rows]
    titles = [title for title, _ in said]
    return dict(said[titles.index(_DETAILS) + 1 :]) if _DETAILS in titles else {}


def _other_than(table: CatalogTable, details: dict[str, str]) -> str | None:
    provider, location = details.get("Provider", ""), details.get("Location", "")
    if provider.lower() == table.provider and _place(location) == _place(table.location):
        return None
    kind = provider or details.get("Type", "unknown")
    place = f" at {location}" if location else ""
    name = shown(".".join(table.name))
    return f"the catalog already has another table with the name {name}: {kind}{place}"


def _place(location: str) -> tuple[str, str, str]:
    """Scheme, bucket and path in a normal form, so that equal places are equal."""
    if location.startswith("/"):
        return "file", "", posixpath.normpath(location)
    url = urlsplit(location)
    scheme = url.scheme.lower()
    path = posixpath.normpath(f"/{unquote(url.path).lstrip('/')}")
    return _SCHEMES.get(scheme, scheme), url.netloc, path
