"""The functions of PostgreSQL that a row filter can use, a module for each family."""

from pgsluice.row_filter.kernels import (  # noqa: F401 - each registers its functions
    arithmetic,
    bits,
    collections,
    comparison,
    date_parts,
    datetimes,
    hashes,
    json_paths,
    jsonb,
    moments,
    networks,
    numerics,
    patterns,
    ranges,
    text,
    time_zones,
)
from pgsluice.row_filter.kernels.kernel import KERNELS

__all__ = ["KERNELS"]
