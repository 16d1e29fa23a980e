"""bit and varbit.

Source: src/backend/utils/adt/varbit.c.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from pgsluice.row_filter.kernels.kernel import kernel, register, register_all
from pgsluice.row_filter.values import SqlError


def _bitwise(name: str, compute: Callable[[str, str], str]) -> Callable[[str, str], str]:
    def run(a: str, b: str) -> str:
        if len(a) != len(b):
            message = f"cannot {name} bit strings of different sizes"
            raise SqlError("string_data_length_mismatch", message)
        return "".join(map(compute, a, b))

    return run


register_all(
    {
        "bitand(bit,bit)": _bitwise("AND", min),
        "bitor(bit,bit)": _bitwise("OR", max),
        "bitxor(bit,bit)": _bitwise("XOR", lambda a, b: "01"[a != b]),
        "bitnot(bit)": lambda bits: bits.translate(str.maketrans("01", "10")),
        "bitcat(varbit,varbit)": operator.add,
        "length(bit) bit_length(bit)": len,
        "octet_length(bit)": lambda bits: (len(bits) + 7) // 8,
        "bit_count(bit)": lambda bits: bits.count("1"),
        "bit_count(bytea)": lambda data: int.from_bytes(data, "big").bit_count(),
    }
)


@kernel("bitshiftleft(bit,int4)")
def _shift_left(bits: str, by: int) -> str:
    if by < 0:
        return _shift_right(bits, -by)
    by = min(by, len(bits))
    return bits[by:] + "0" * by


@kernel("bitshiftright(bit,int4)")
def _shift_right(bits: str, by: int) -> str:
    if by < 0:
        return _shift_left(bits, -by)
    by = min(by, len(bits))
    return "0" * by + bits[: len(bits) - by]


@kernel("get_bit(bit,int4)")
def _get_bit(bits: str, index: int) -> int:
    if not 0 <= index < len(bits):
        message = f"bit index {index} out of valid range (0..{len(bits) - 1})"
        raise SqlError("array_subscript_error", message)
    return int(bits[index])


@kernel("bit(bit,int4,bool)")
def _to_bit(bits: str, length: int, is_explicit: bool) -> str:
    if length <= 0 or length == len(bits):
        return bits
    if not is_explicit:
        message = f"bit string length {len(bits)} does not match type bit({length})"
        raise SqlError("string_data_length_mismatch", message)
    return bits[:length].ljust(length, "0")


@kernel("varbit(varbit,int4,bool)")
def _to_varbit(bits: str, length: int, is_explicit: bool) -> str:
    if length <= 0 or length >= len(bits):
        return bits
    if not is_explicit:
        message = f"bit string too long for type bit varying({length})"
        raise SqlError("string_data_right_truncation", message)
    return bits[:length]


def _from_integer(width: int) -> Callable[[int, int], str]:
    def run(number: int, length: int) -> str:
        length = length if length > 0 else 1
        bits = f"{number % 2**width:0{width}b}"
        if length <= width:
            return bits[width - length :]
        return ("1" if number < 0 else "0") * (length - width) + bits

    return run


register("bit(int4,int4)", _from_integer(32))
register("bit(int8,int4)", _from_integer(64))


def _to_integer(width: int, message: str) -> Callable[[str], int]:
    def run(bits: str) -> int:
        if len(bits) > width:
            raise SqlError("numeric_value_out_of_range", message)
        number = int(bits or "0", 2)
        return number - 2**width if number >= 2 ** (width - 1) else number

    return run


register("int4(bit)", _to_integer(32, "integer out of range"))
register("int8(bit)", _to_integer(64, "bigint out of range"))
