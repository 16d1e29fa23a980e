"""Row filters: PostgreSQL's ``WHERE (...)`` of a publication, parsed, checked and evaluated.

:func:`bind_row_filter` parses a filter's SQL text, binds it to a relation's columns and checks it
as PostgreSQL 18 does; :attr:`BoundFilter.sql` is the filter as PostgreSQL prints it.
:func:`plan_filters` plans bound filters once in a process, and :class:`FilterEvaluator` computes
them for batches of rows, with NULLs and errors as on the server.

Other rooms import from this package only, never from its modules.
"""

from pgsluice.row_filter.bind.bound_filter import BoundFilter, bind_row_filter, check_syntax
from pgsluice.row_filter.catalog import FilterColumn
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.evaluate import FilterEvaluator, plan_filters
