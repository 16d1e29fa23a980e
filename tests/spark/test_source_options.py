"""Options are read once, and what is wrong with one is said at once."""

from __future__ import annotations

import pytest

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.options import SourceOptions, TableName


def test_names_are_compared_without_case() -> None:
    options = SourceOptions.parse(
        {
            "SPOOL": "/s",
            "Subscription": "lake",
            "TABLE": "Shop.Orders",
            "Max_Rows_Per_Batch": "10",
            "publication_names": "a, b",
            "two_phase": "on",
            "starting_lsn": "0/10",
        }
    )
    assert str(options.spool) == "/s"
    assert options.subscription == "lake"
    assert options.table == TableName("shop", "orders")
    assert options.max_rows_per_batch == 10
    assert options.publication_names == ("a", "b")
    assert options.two_phase
    assert options.starting_lsn == Lsn(16)


def test_defaults() -> None:
    options = SourceOptions.parse({"spool": "s"})
    assert options.spool.is_absolute()
    assert options.max_rows_per_batch == 1_000_000
    assert options.max_bytes_per_batch == 268_435_456
    assert options.change_column_prefix == "_"
    assert not options.task_mode


@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("public.orders", "public", "orders"),
        ("Public.Orders", "public", "orders"),
        ('"Shop"."Order Lines"', "Shop", "Order Lines"),
        ('"a.b"."say ""hi"""', "a.b", 'say "hi"'),
        ('shop."T"', "shop", "T"),
    ],
)
def test_a_table_is_named_as_in_sql(text: str, namespace: str, name: str) -> None:
    assert TableName.parse(text) == TableName(namespace, name)


@pytest.mark.parametrize("text", ["orders", "", "a.b.c", '"a.b', "a.", ".b", 'a."b"c'])
def test_what_is_not_a_table_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a table's name"):
        TableName.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option spool is missing"),
        ({"spool": "s", "tabel": "a.b"}, "did you mean table"),
        ({"spool": "s", "colour": "red"}, "unknown option 'colour'"),
        ({"spool": "s", "publications_sql": "x"}, "not supported by this version"),
        ({"spool": "s", "snapshot": "true"}, "not supported by this version"),
        ({"spool": "s", "json": "variant"}, "not supported by this version"),
        ({"spool": "s", "max_rows_per_batch": "0"}, "positive whole number"),
        ({"spool": "s", "max_bytes_per_batch": "1e6"}, "positive whole number"),
        ({"spool": "s", "binary": "perhaps"}, "neither true nor false"),
        ({"spool": "s", "starting_lsn": "17"}, "not an LSN"),
        ({"spool": "s", "numeric": "decimal(40,2)"}, "option numeric"),
        ({"spool": "s", "streaming": "maybe"}, "off, on, parallel"),
        ({"spool": "s", "subscription": "../x"}, "option subscription"),
        ({"spool": "s", "task_mode": "true"}, "needs the option subscription"),
        ({"spool": "s", "dsn": ""}, "option dsn is empty"),
        ({"spool": "s", "publication_names": " , "}, "names nothing"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourceOptions.parse(options)
