"""Names of tables in a catalog, and what a session needs to have Delta tables there."""

from __future__ import annotations

import pytest

from pgsluice.config import parse_sink
from pgsluice.errors import ConfigError
from pgsluice.sinks.delta.catalog_settings import lacking_settings, package_for


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{schema}.{table}", "`public`.`odd.``name`"),
        ("lake_{schema}.pg_{table}", "`lake_public`.`pg_odd.``name`"),
        ("main.{schema}.{table}", "`main`.`public`.`odd.``name`"),
    ],
)
def test_parts_are_those_of_the_template(template: str, name: str) -> None:
    sink = parse_sink({"type": "delta", "path": "/lake/{table}", "register": template})
    entry = sink.catalog_table("public", "odd.`name")
    assert entry is not None
    assert entry.sql_name == name
    assert entry.location == "/lake/odd.~60name"


def test_without_the_key_nothing_is_registered() -> None:
    sink = parse_sink({"type": "delta", "path": "/lake/{table}"})
    assert sink.catalog_table("public", "t") is None
    assert [*sink.lacking_for_catalog({}, "4.2.1")] == []


@pytest.mark.parametrize(
    "template", ["{table}", "a.b.c.{table}", "{table}.{schema}", "x.{name}", ".{table}", "x.t"]
)
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(ConfigError, match='"register"'):
        parse_sink({"type": "delta", "path": "/lake/{table}", "register": template})


def test_what_the_session_lacks_is_named_as_lines_of_the_section() -> None:
    lacking, in_memory = lacking_settings(
        "{schema}.{table}", {"spark.sql.extensions": "a.B"}, "4.2.1"
    )
    assert lacking[1].splitlines()[1:] == [
        '"spark.jars.packages" = "io.delta:delta-spark_4.2_2.13:4.4.0"',
        '"spark.sql.extensions" = "a.B,io.delta.sql.DeltaSparkSessionExtension"',
        '"spark.sql.catalog.spark_catalog" = "org.apache.spark.sql.delta.catalog.DeltaCatalog"',
    ]
    assert "in memory" in in_memory[0]


def test_a_session_with_all_of_it_lacks_nothing() -> None:
    settings = {
        "spark.jars": "/jars/delta-spark_4.2_2.13-4.4.0.jar",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
    }
    assert [*lacking_settings("{schema}.{table}", settings, None)] == []
    (lacking,) = lacking_settings("main.{schema}.{table}", settings, None)
    assert '"spark.sql.catalog.main" = "…"' in lacking[1]


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("3.5.8", "io.delta:delta-spark_2.12:3.3.2"),
        ("4.0.2", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.2.0.dev1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.9.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        (None, "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_deltas_package_is_that_of_the_version_of_spark(version: str | None, package: str) -> None:
    assert package_for(version) == package
