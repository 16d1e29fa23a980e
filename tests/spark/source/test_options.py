"""Options of the source: names, values, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.options import SourceOptions, TableName
from pgsluice.spark.source.walsender_options import refuse_other_options
from pgsluice.spool import SpoolIdentity


def test_option_names_are_not_case_sensitive() -> None:
    options = SourceOptions.parse(
        {
            "SPOOL": "/s",
            "Subscription": "lake",
            "TABLE": "Shop.Orders",
            "Max_Rows_Per_Batch": "10",
            "publications": "a, b",
            "two_phase": "on",
            "starting_lsn": "0/10",
        }
    )
    assert str(options.spool) == "/s"
    assert options.subscription == "lake"
    assert options.table == TableName("shop", "orders")
    assert options.max_rows_per_batch == 10
    assert options.publications == ("a", "b")
    assert options.two_phase
    assert options.starting_lsn == Lsn(16)


def test_names_of_earlier_versions_still_work() -> None:
    options = SourceOptions.parse({"spool": "/s", "publication_names": "a, b"})
    assert options.publications == ("a", "b")


def test_default_values() -> None:
    options = SourceOptions.parse({"spool": "s"})
    assert options.spool.is_absolute()
    assert options.max_rows_per_batch == 1_000_000
    assert options.max_bytes_per_batch == 268_435_456
    assert options.change_column_prefix == "_"


def test_only_given_options_are_passed_to_the_walsender() -> None:
    assert SourceOptions.parse({"spool": "s"}).walsender == {}
    given = {"proto_version": "2", "streaming": "on", "two_phase": "false", "origin": "none"}
    assert SourceOptions.parse({"spool": "s", **given, "Messages": "TRUE"}).walsender == {
        "proto_version": 2,
        "streaming": "on",
        "two_phase": False,
        "origin": "none",
        "messages": True,
    }


def spool_with(**in_force: str) -> SpoolIdentity:
    """The identity of a spool that is written with these options of START_REPLICATION."""
    return SpoolIdentity(
        system_identifier="7", timeline=1, database="shop", slot="pgsluice", options=in_force
    )


@pytest.mark.parametrize("name", ["two_phase", "binary", "messages"])
def test_an_option_that_differs_from_the_spools_is_refused(name: str) -> None:
    options = SourceOptions.parse({"spool": "/data/spool", name: "true"})
    refuse_other_options(options, spool_with(**{name: "true", "streaming": "parallel"}))
    refuse_other_options(options, spool_with())  # no capture has run yet
    with pytest.raises(ConfigError) as caught:
        refuse_other_options(options, spool_with(**{name: "false"}))
    assert caught.value.what == (
        f"the option {name} is true, but the process that writes the spool /data/spool uses "
        f"{name} = false"
    )


def test_the_slot_and_publications_of_the_spool() -> None:
    """Another one that a query names would have no effect."""
    spool = SpoolIdentity(
        system_identifier="7", timeline=1, database="shop", slot="shop",
        publications=("p", "p_insert", "q"),
    )  # fmt: skip
    refuse_other_options(SourceOptions.parse({"spool": "/data/spool"}), spool)
    right = {"spool": "/data/spool", "slot": "shop", "publications": "q, p"}
    refuse_other_options(SourceOptions.parse(right), spool)
    with pytest.raises(ConfigError) as info:
        refuse_other_options(SourceOptions.parse({**right, "slot": "shopp"}), spool)
    assert info.value.what == (
        "the option slot is shopp, but the spool /data/spool belongs to slot shop"
    )
    assert "configuration" not in info.value.hint
    with pytest.raises(ConfigError) as info:
        refuse_other_options(SourceOptions.parse({**right, "publications": "p"}), spool)
    assert info.value.what == (
        "the option publications is p, but the process that writes the spool /data/spool uses "
        "publications = p, q"
    )


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
def test_table_names_follow_the_rules_of_sql(text: str, namespace: str, name: str) -> None:
    assert TableName.parse(text) == TableName(namespace, name)


@pytest.mark.parametrize("text", ["orders", "", "a.b.c", '"a.b', "a.", ".b", 'a."b"c'])
def test_a_malformed_table_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a table"):
        TableName.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option spool is missing"),
        ({"spool": "s", "tabel": "a.b"}, "did you mean table"),
        ({"spool": "s", "colour": "red"}, "unknown option 'colour'"),
        ({"spool": "s", "publications_sql": "x"}, "does not support the option publications_sql"),
        (
            {"spool": "s", "json": "variant"},
            'does not support the value "variant" of the option json',
        ),
        ({"spool": "s", "max_rows_per_batch": "0"}, "positive whole number"),
        ({"spool": "s", "max_bytes_per_batch": "1e6"}, "positive whole number"),
        ({"spool": "s", "binary": "perhaps"}, "neither true nor false"),
        ({"spool": "s", "starting_lsn": "17"}, "not an LSN"),
        ({"spool": "s", "numeric": "decimal(40,2)"}, "option numeric"),
        ({"spool": "s", "streaming": "maybe"}, "off, on, parallel"),
        ({"spool": "s", "proto_version": "5"}, "not one of 1, 2, 3, 4"),
        ({"spool": "s", "origin": "here"}, "any, none"),
        ({"spool": "s", "subscription": "../x"}, "option subscription"),
        ({"spool": "s", "task_mode": "true"}, "unknown option 'task_mode'"),
        ({"spool": "s", "dsn": ""}, "option dsn is empty"),
        ({"spool": "s", "publications": " , "}, "names nothing"),
        ({"spool": "s", "table": "a.b", "columns": " , "}, "not a list of column names"),
        ({"spool": "s", "table": "a.b", "columns": "a, b c"}, "not a list of column names"),
        ({"spool": "s", "columns": "a"}, "for queries that read one table"),
    ],
)
def test_an_error_names_the_wrong_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourceOptions.parse(options)
