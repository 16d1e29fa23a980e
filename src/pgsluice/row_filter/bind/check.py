"""Check a bound filter: a publication allows only simple, immutable, built-in expressions.

Source: check_simple_rowfilter_expr in src/backend/commands/publicationcmds.c.
"""

from __future__ import annotations

from collections.abc import Set

from pgsluice.definitions.source_tables import FIRST_NORMAL_OID
from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.tree import children, collation_of, functions_called, location_of, type_of
from pgsluice.sql import SqlRefused

MESSAGE = "invalid publication WHERE expression"
NOT_SIMPLE = (
    "Only columns, constants, built-in operators, built-in data types, built-in collations, and"
    " immutable built-in functions are allowed."
)

SYSTEM_TYPES = {"tableoid": 26, "ctid": 27, "xmin": 28, "cmin": 29, "xmax": 28, "cmax": 29}
"""The system columns and their types."""


def check(node: n.Node, catalog: c.Catalog, system: Set[str]) -> None:
    """Refuse what PostgreSQL refuses; the outermost offender is reported.

    Args:
        system: the system columns that no column of the table hides.

    Raises:
        SqlRefused: "invalid publication WHERE expression", with one of the details.
    """
    if (detail := _objection(node, catalog, system)) is not None:
        raise SqlRefused(MESSAGE, location_of(node), detail=detail)
    for child in children(node):
        check(child, catalog, system)


def _objection(node: n.Node, catalog: c.Catalog, system: Set[str]) -> str | None:
    if isinstance(node, n.Column) and node.name in system:
        return "System columns are not allowed."
    if isinstance(node, n.Disallowed):
        return NOT_SIMPLE
    if type_of(node) >= FIRST_NORMAL_OID:
        return "User-defined types are not allowed."
    functions = catalog.rows.functions
    if any(functions[called.oid].volatility != "i" for called in functions_called(node)):
        return "User-defined or built-in mutable functions are not allowed."
    collations = (collation_of(node), getattr(node, "input_collation", 0))
    if any(oid >= FIRST_NORMAL_OID for oid in collations):
        return "User-defined collations are not allowed."
    return None
