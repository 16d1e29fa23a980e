"""The functions of PostgreSQL that a row filter can be computed with, by family."""

from __future__ import annotations

from pgsluice.row_filter.kernels import (
    arithmetic,
    bits,
    collections,
    comparison,
    datetimes,
    documents,
    fields,
    networks,
    numerics,
    patterns,
    text,
)
from pgsluice.row_filter.kernels.kernel import KERNELS

FAMILIES = (
    arithmetic,
    bits,
    collections,
    comparison,
    datetimes,
    documents,
    fields,
    networks,
    numerics,
    patterns,
    text,
)

__all__ = ["FAMILIES", "KERNELS"]
