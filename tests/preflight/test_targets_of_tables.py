"""``pgsluice check`` finds tables whose target cannot be as configured, before a copy does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.databases import Database, MakeDatabase

from pgsluice.config import load_config
from pgsluice.preflight.checks import run_checks
from pgsluice.preflight.findings import Level

Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """The errors about the configuration of a subscription, for these lines of it."""

    def errors(shop: Database, lines: str = "", sink: str = "") -> list[str]:
        path = tmp_path / "pgsluice.toml"
        path.write_text(
            f"""
[source]
dsn = {json.dumps(shop.dsn)}
slot = "{shop.name}"
[spool]
path = "spool"
[[subscription]]
name = "s"
sink = {{ type = "delta", path = "lake/{{schema}}/{{table}}"{sink} }}
{lines}
"""
        )
        subjects = ("configuration", "column names")
        found = (f for f in run_checks(load_config(path)) if f.subject in subjects)
        return [finding.what for finding in found if finding.level is Level.ERROR]

    return errors


def test_partitions_names_and_order_that_the_tables_cannot_have(
    database: MakeDatabase, check: Check
) -> None:
    shop = database()
    shop.execute(
        'CREATE TABLE t (id int PRIMARY KEY, price float8, at time, tags text[], a int, "A" int)',
        "CREATE DOMAIN day AS date",
        "CREATE TABLE u (id int PRIMARY KEY, d day, n numeric(9,2), made timestamptz)",
    )
    apart = 'rename = { "public.t.A" = "a_too", "public.u.made" = "made_at" }'
    (case,) = check(shop)
    (case,) = check(shop)
    assert "differ only in upper and lower case" in case
    fine = '"public.u" = ["d", "month(made)"]'
    assert check(shop, apart, f', partition_by = {{ {fine}, "public.t" = ["A"] }}') == []
    for column, kind in (("price", "double"), ("month(at)", "string"), ("tags", "list")):
        (found,) = check(shop, apart, f', partition_by = {{ "public.t" = ["{column}"] }}')
        assert f"`partition_by` of the sink has for table public.t: {column}, but" in found
        assert f"is {kind}" in found
    (found,) = check(shop, apart, ', cluster_by = { "public.t" = ["tags"] }')
    assert "which has no order" in found
    (found,) = check(shop, apart, ', partition_by = { "public.u" = ["n"] }')
    assert "is decimal128(9, 2)" in found
    (found,) = check(shop, 'rename = { "public.t.A" = "x", "public.u" = "T" }')
    assert found == (
        'subscription "s": table public.t would be public.t, but `rename` of the subscription '
        "gives this name to public.u"
    )
    (found,) = check(shop, 'rename = { "public.t.A" = "Price" }')
    assert "column price of table public.t would have its name at the target" in found
    names = 'mode = "history"\nrename = { "public.t.A" = "_VALID_TO" }'
    (found,) = check(shop, names)
    assert "pgsluice adds the column _valid_to to its target" in found
