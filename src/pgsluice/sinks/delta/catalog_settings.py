"""The settings that a Spark session needs for Delta tables in its catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_PACKAGES = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    **{spark: f"io.delta:delta-spark_{spark}_2.13:4.4.0" for spark in ("4.0", "4.1", "4.2")},
}
"""Delta's package by the version of Spark that it is built for."""
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SESSION_CATALOG = "spark_catalog"
_IN_MEMORY = (
    "the catalog of Spark's session is in memory: it forgets the tables when a run ends, and no "
    "other program sees them"
)
_METASTORE = (
    '"spark.sql.catalogImplementation" = "hive" and "spark.hadoop.hive.metastore.uris" = '
    '"thrift://…" in [spark] keep them in a Hive metastore'
)
_JARS = ("spark.jars.packages", "spark.jars", "spark.driver.extraClassPath")


def package_for(version: str | None) -> str:
    """Delta's package for a version of Spark, such as ``4.1.2``; None, or one that Delta has no
    package for: that of the newest."""
    number = ".".join((version or "").split(".")[:2])
    return _PACKAGES.get(number, _PACKAGES[max(_PACKAGES)])


def lacking_settings(
    template: str, spark: Mapping[str, str], version: str | None
) -> Iterator[tuple[str, str]]:
    """The missing settings, and what to do.

    Args:
        template: the template of the tables' names, with two or three parts.
        spark: the session's settings, as configured.
        version: the version of Spark; None: unknown.
    """
    first, *others = template.split(".")
    catalog = first if len(others) > 1 else _SESSION_CATALOG
    key = f"spark.sql.catalog.{catalog}"
    lacking = []
    if not any("delta-spark" in spark.get(name, "") for name in _JARS):
        lacking.append(_setting("spark.jars.packages", package_for(version), spark))
    if _EXTENSION not in spark.get("spark.sql.extensions", ""):
        lacking.append(_setting("spark.sql.extensions", _EXTENSION, spark))
    if key not in spark:
        is_ours = catalog == _SESSION_CATALOG
        lacking.append(f'"{key}" = "{_CATALOG if is_ours else "…"}"')
    if lacking:
        yield (
            f'register = "{template}" needs settings that [spark] does not have',
            "\n".join(("add, unless the platform's own session has them:", *lacking)),
        )
    is_hive = spark.get("spark.sql.catalogImplementation") == "hive"
    if catalog == _SESSION_CATALOG and spark.get(key, _CATALOG) == _CATALOG and not is_hive:
        yield _IN_MEMORY, _METASTORE


def _setting(name: str, value: str, spark: Mapping[str, str]) -> str:
    """A line for ``[spark]`` that keeps the setting's existing values."""
    return f'"{name}" = "{",".join(part for part in (spark.get(name), value) if part)}"'
