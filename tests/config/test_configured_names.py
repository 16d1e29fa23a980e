"""Names in settings that no table has: a warning with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgsluice.config import Config, parse_config
from pgsluice.config.configured_names import unknown_names
from pgsluice.errors import ConfigError

TABLES = {"public.orders": ["id", "Total"], "a.b": ["c"], "a.b.c": ["d"]}


def configured(more: str, sink: str = "") -> Config:
    text = f"""
[source]
dsn = "host=db"
[spool]
path = "spool"
[[subscription]]
name = "lake"
sink = {{ type = "delta", path = "lake/{{schema}}/{{table}}"{sink} }}
"""
    return parse_config(text + more, Path("/etc/pgsluice.toml"))


def said(config: Config, tables: dict[str, list[str]] = TABLES) -> list[str]:
    return [str(name) for name in unknown_names(config.subscriptions[0], tables)]


def test_names_that_tables_have_are_not_mentioned() -> None:
    config = configured(
        'key = { "public.orders" = ["id"] }\n'
        'types = { "public.orders.Total" = "double", "a.b.c.d" = "double", "a.b.c" = "string" }',
        ', merge_tables = { "public.orders" = "on_read" }',
    )
    assert said(config) == []
    sink = (
        ', partition_by = { "public.orders" = ["Total", "day(_commit_timestamp)"] }'
        ', cluster_by = { "public.orders" = ["id"] }'
    )
    assert said(configured('mode = "changelog"', sink)) == []


def test_names_of_rename_are_schemas_tables_or_columns() -> None:
    known = '"public" = "a", "public.orders" = "b", "public.orders.id" = "c", "a.b.c.d" = "e"'
    assert said(configured(f"rename = {{ {known} }}")) == []
    wrong = '"publik" = "a", "public.ordrs" = "b", "public.orders.idd" = "c"'
    first, second, third = said(configured(f"rename = {{ {wrong} }}"))
    missing = "and no table of this name or schema is sent"
    assert first == f'"rename" names publik, {missing}\n  → did you mean public?'
    assert second == f'"rename" names public.ordrs, {missing}\n  → did you mean public.orders?'
    assert third == (
        '"rename" names idd, which is no column of public.orders\n  → did you mean id?'
    )


def test_each_setting_with_names_says_which_are_unknown() -> None:
    config = configured(
        'key = { "public.ordrs" = ["id"], "public.orders" = ["idd"] }\n'
        'types = { "public.orders.total" = "double", "else.x.c" = "double" }',
        ', merge_tables = { "public.order" = "on_read" }',
    )
    assert said(config, {title: TABLES[title] for title in ("public.orders", "a.b")}) == [
        '"key" names the table public.ordrs, which is not sent\n  → did you mean public.orders?',
        '"key" names idd, which is no column of public.orders\n  → did you mean id?',
        '"types" names total, which is no column of public.orders\n  → did you mean Total?',
        '"types" names the table else.x, which is not sent\n  → the tables are: a.b, public.orders',
        '"sink" names the table public.order, which is not sent\n  → did you mean public.orders?',
    ]


def test_nothing_is_unknown_while_no_table_is_sent() -> None:
    assert said(configured('key = { "public.t" = ["id"] }'), {}) == []


def test_columns_of_partitions_and_their_order() -> None:
    config = configured(
        "",
        ', partition_by = { "public.orders" = ["month(totl)"], "public.ordrs" = ["a", "b"] }'
        ', cluster_by = { "public.orders" = ["_commit_timestamp"] }',
    )
    assert said(config, {"public.orders": TABLES["public.orders"]}) == [
        '"sink" names the table public.ordrs, which is not sent\n  → did you mean public.orders?',
        '"sink" names totl, which is no column of public.orders\n  → did you mean Total?',
        (
            '"sink" names _commit_timestamp, which is no column of public.orders\n'
            "  → there are: id, Total"
        ),
    ]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("[]", '"public.t" needs a column'),
        ('["a", "A"]', '"public.t" has "A" twice'),
        ('["month(a)", "a_month"]', '"public.t" has "a_month" twice'),
        (
            '["mnth(a)"]',
            '"public.t" has "mnth(a)", and "mnth" is no part of a time; did you mean "month"?',
        ),
        ('["round(a)"]', '"round" is no part of a time; it can be "day", "hour", "month", "year"'),
    ],
)
def test_lists_that_no_table_can_have(columns: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        configured("", f', partition_by = {{ "public.t" = {columns} }}')


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pgsluice.merge", "which pgsluice itself keeps"),
        ("delta.enableDeletionVectors", "which pgsluice itself keeps: set merge in the sink"),
        ("delta.logRetentionDuration", "set history_retention in the sink"),
        ("delta.appendOnly", "which pgsluice does not support"),
        ("delta.feature.rowTracking", "which pgsluice does not support"),
        ("delta.targetFilesize", 'did you mean "delta.targetFileSize"?'),
        (" ", "which is empty"),
    ],
)
def test_properties_that_no_table_can_have(name: str, why: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f'"public.t" has the property "{name}", ')
    ) as e:
        configured("", f', table_properties = {{ "public.t" = {{ "{name}" = "1" }} }}')
    assert why in str(e.value)
