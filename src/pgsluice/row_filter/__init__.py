"""Row filters: PostgreSQL's ``WHERE (...)`` of a publication, read, checked and computed.

A filter's way: SQL text, parsed and bound to a relation's columns and checked as PostgreSQL 18
checks it (:func:`bind_row_filter`); printed as PostgreSQL prints it (:attr:`BoundFilter.sql`);
planned once in a process (:func:`plan_filters`) and computed for batches of rows, with NULLs
and errors as on the server (:class:`FilterEvaluator`).

Other rooms import from this package only, never from its modules.
"""

from pgsluice.row_filter.bind import BoundFilter, bind_row_filter, check_syntax
from pgsluice.row_filter.catalog import FilterColumn
from pgsluice.row_filter.catalog import Type as FilterType
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.evaluate import FilterEvaluator, plan_filters

__all__ = [
    "BoundFilter",
    "FilterColumn",
    "FilterEvaluator",
    "FilterNotExact",
    "FilterType",
    "bind_row_filter",
    "check_syntax",
    "plan_filters",
]
