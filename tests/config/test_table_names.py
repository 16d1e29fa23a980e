"""A name that a user types means the same table in every command."""

from __future__ import annotations

import pytest

from pgsluice.config.values.table_names import publication_named, table_named
from pgsluice.errors import ConfigError

_TABLES = [
    ("public", "orders"),
    ("sales", "orders"),
    ("public", "Order Lines"),
    ("sales", "Items"),
    ("sales", "order"),
    ("a", "same"),
    ("b", "same"),
    ("public", "CASE"),
    ("public", "case"),
    ("public", 'q"t'),
    ("public", "a.b"),
    ("public", "esc\x1bape"),
]


@pytest.mark.parametrize(
    ("given", "table"),
    [
        ("orders", ("public", "orders")),
        ("public.orders", ("public", "orders")),
        ("sales.orders", ("sales", "orders")),
        ("ORDERS", ("public", "orders")),
        ("Sales.Orders", ("sales", "orders")),
        ('"orders"', ("public", "orders")),
        ('sales."orders"', ("sales", "orders")),
        ("Order Lines", ("public", "Order Lines")),
        ("public.Order Lines", ("public", "Order Lines")),
        ('"Order Lines"', ("public", "Order Lines")),
        ("Items", ("sales", "Items")),
        ("items", ("sales", "Items")),
        ('sales."Items"', ("sales", "Items")),
        ("order", ("sales", "order")),  # a reserved word of SQL
        ("CASE", ("public", "CASE")),
        ("case", ("public", "case")),
        ('"CASE"', ("public", "CASE")),
        ('"q""t"', ("public", 'q"t')),
        ('public.q"t', ("public", 'q"t')),
        ("a.b", ("public", "a.b")),
        (r"public.esc\x1bape", ("public", "esc\x1bape")),
    ],
)
def test_a_name_is_one_table(given: str, table: tuple[str, str]) -> None:
    assert table_named(given, _TABLES, "none") == table


_SEVERAL = "write the name of one of them: a.same, b.same"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("same", "the name same matches several tables\n  → " + _SEVERAL),
        ("oders", "none\n  → did you mean public.orders?"),
        ('"ORDERS"', "none\n  → did you mean public.orders?"),
        ("", "none\n  → the tables are: "),
    ],
)
def test_no_table_or_several(given: str, said: str) -> None:
    tables = [table for table in _TABLES if table != ("sales", "orders")]
    with pytest.raises(ConfigError) as caught:
        table_named(given, tables, "none")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("given", "name"),
    [("eu", "eu"), ("EU", "eu"), ('"Big One"', "Big One"), ("big one", "Big One"), ("x", None)],
)
def test_publications(given: str, name: str | None) -> None:
    assert publication_named(given, ["eu", "Big One"]) == name
