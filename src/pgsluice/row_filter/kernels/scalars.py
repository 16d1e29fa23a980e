"""Make Arrow scalars of Python values, and booleans of masks.

The first use of ``pa.scalar`` or ``pa.array`` would load pandas, which takes most of a second in
every worker that filters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Datum: TypeAlias = Any
"""An Arrow array, or a scalar for a constant."""
ColumnCompute: TypeAlias = Callable[..., Datum]


Mask: TypeAlias = npt.NDArray[np.bool_]


class NoColumn(Exception):
    """Arrow cannot compute a part of a filter for these values: each row is computed alone."""


_FORMATS: Final = {
    pa.int16(): "=h",
    pa.int32(): "=i",
    pa.int64(): "=q",
    pa.float32(): "=f",
    pa.float64(): "=d",
    pa.date32(): "=i",
    pa.timestamp("us"): "=q",
    pa.timestamp("us", "UTC"): "=q",
    pa.bool_(): "=?",
}


def make_scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar:
    """A value, or null for None.

    Args:
        value: an integer, also for dates and timestamps (since 1970), a float, bool, str,
            bytes, or a Decimal of exactly the type's scale.
        arrow_type: one of those, strings and bytes large.

    Raises:
        OverflowError: an integer does not fit.
    """
    if value is None:
        return pa.nulls(1, arrow_type)[0]
    if isinstance(value, str | bytes):
        raw = value.encode("utf-8") if isinstance(value, str) else value
        buffers = [struct.pack("=qq", 0, len(raw)), raw]
    elif isinstance(value, Decimal):
        buffers = [_unscaled(value).to_bytes(16, "little", signed=True)]
    else:
        try:
            buffers = [struct.pack(_FORMATS[arrow_type], value)]
        except struct.error:
            raise OverflowError(f"no {arrow_type}") from None
    return pa.Array.from_buffers(arrow_type, 1, [None, *map(pa.py_buffer, buffers)])[0]


def _unscaled(number: Decimal) -> int:
    sign, digits, _ = number.as_tuple()
    unscaled = int("".join(map(str, digits)))
    return -unscaled if sign else unscaled


def null_truth() -> pa.Scalar:
    """NULL of type boolean, as an Arrow scalar."""
    return make_scalar(None, pa.bool_())


def boolean_array(truth: Mask, null: Mask | None = None) -> pa.Array:
    """An Arrow array of booleans; ``null``: its rows that are NULL, None: no row is."""
    validity = None
    if null is not None and null.any():
        validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    bits = pa.py_buffer(np.packbits(truth, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(truth), [validity, bits])
