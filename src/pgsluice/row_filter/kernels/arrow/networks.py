"""inet on whole columns: whether an IPv4 address is in a constant network.

Source: src/backend/utils/adt/network.c (network_sub, network_subeq).

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute, Datum, NoColumn, boolean_array
from pgsluice.row_filter.values.networks import Inet

_FORM: Final = r"^(?P<a>\d+)\.(?P<b>\d+)\.(?P<c>\d+)\.(?P<d>\d+)(?:/(?P<bits>\d+))?$"


def _is_in(is_proper: bool) -> Callable[[Site], ColumnCompute | None]:
    def make(site: Site) -> ColumnCompute | None:
        network = site.constants[1]
        if not isinstance(network, Inet) or network.family != 4:
            return None

        def run(texts: Datum, _: Datum) -> Datum:
            if isinstance(texts, pa.Scalar):
                raise NoColumn
            return _tested(texts, network, is_proper)

        return run

    return make


def _tested(texts: pa.Array, network: Inet, is_proper: bool) -> pa.Array:
    found = pc.extract_regex(texts, _FORM)  # NULL for IPv6, which is in no network of IPv4
    parts = [_numbers(pc.struct_field(found, [place]), 0) for place in range(4)]
    address = (parts[0] << 24) | (parts[1] << 16) | (parts[2] << 8) | parts[3]
    bits = _numbers(pc.struct_field(found, [4]), 32)
    shift = 32 - network.bits
    is_in = (address >> shift) == (network.address >> shift)
    is_in &= (bits > network.bits) if is_proper else (bits >= network.bits)
    is_v4 = found.is_valid().to_numpy(zero_copy_only=False)
    return boolean_array(is_in & is_v4, texts.is_null().to_numpy(zero_copy_only=False))


def _numbers(digits: pa.Array, missing: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    filled = pc.if_else(pc.equal(digits, "").fill_null(True), str(missing), digits)
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = filled.cast(pa.int64()).to_numpy()
    return numbers


MAKERS: Final[dict[str, Callable[[Site], ColumnCompute | None]]] = {
    "network_sub(inet,inet)": _is_in(is_proper=True),
    "network_subeq(inet,inet)": _is_in(is_proper=False),
}
"""For functions of networks, what makes the computation of a call; None: rows only."""
