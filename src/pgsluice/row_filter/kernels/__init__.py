"""The functions of PostgreSQL that a row filter can use, a module for each family."""

from pgsluice.row_filter.kernels import (
    arithmetic,
    bits,
    collections,
    comparison,
    hashes,
    json_paths,
    jsonb,
    networks,
    numerics,
)
from pgsluice.row_filter.kernels.kernel import KERNELS
from pgsluice.row_filter.kernels.texts import functions, patterns
from pgsluice.row_filter.kernels.times import date_parts, datetimes, time_zones
