"""Numbers, text, bits, transaction ids, tuple ids and LSNs.

Source: src/backend/utils/adt: numeric.c, cash.c, varbit.c, char.c, xid.c, pg_lsn.c, tid.c,
xid8funcs.c.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen, fields

_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_MAX_SCALE = 0x3FFF
_VERSION = 1


def print_text(value: bytes) -> str:
    """text, varchar, char(n), name, json, xml, enums: their binary form is their text."""
    return value.decode()


def print_versioned(value: bytes) -> str:
    """jsonb and jsonpath: a version byte, which is 1, then the text."""
    cursor = Cursor(value)
    if cursor.number(1) != _VERSION:
        raise Misshapen
    return cursor.rest().decode()


def print_char(value: bytes) -> str:
    """The one-byte type "char": bytes over 127 print as ``\\ooo``, 0 as nothing."""
    if len(value) != 1:
        raise Misshapen
    byte = value[0]
    if byte >= 128:
        return f"\\{byte:03o}"
    return chr(byte) if byte else ""


def print_bool(value: bytes) -> str:
    """Text of a value, as PostgreSQL's boolout prints it, from its binary form."""
    if value not in (b"\0", b"\1"):
        raise Misshapen
    return "t" if value == b"\1" else "f"


@dataclass(frozen=True, slots=True)
class IntegerPrinter:
    """Prints integers of this size in bytes from their binary form."""

    size: int
    is_signed: bool = True

    def __call__(self, value: bytes) -> str:
        (number,) = fields(value, self.size)
        return str(number if self.is_signed else number % 256**self.size)


print_int2, print_int4, print_int8 = IntegerPrinter(2), IntegerPrinter(4), IntegerPrinter(8)
#: Of oid, xid and cid; of xid8.
print_unsigned4, print_unsigned8 = IntegerPrinter(4, False), IntegerPrinter(8, False)


def print_bytea(value: bytes) -> str:
    """Text of a bytea, as byteaout prints it with bytea_output = hex."""
    return f"\\x{value.hex()}"


def print_uuid(value: bytes) -> str:
    """Text of a value, as PostgreSQL's uuid_out prints it, from its binary form."""
    if len(value) != 16:
        raise Misshapen
    return str(uuid.UUID(bytes=value))


def print_money(value: bytes) -> str:
    """cash_out under lc_monetary = C, which the replication session sets: ``-$1,234.56``.

    The binary form is an int8. Only that locale says how many of its digits are cents.
    """
    (cents,) = fields(value, 8)
    whole, fraction = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{fraction:02}"


def print_bits(value: bytes) -> str:
    """bit and varbit: the number of bits as int4, then the bits, padded with zeros to bytes."""
    cursor = Cursor(value)
    count, packed = cursor.count(), cursor.rest()
    if len(packed) != (count + 7) // 8:
        raise Misshapen
    return "".join(f"{byte:08b}" for byte in packed)[:count]


def print_lsn(value: bytes) -> str:
    """Text of a value, as PostgreSQL's pg_lsn_out prints it, from its binary form."""
    high, low = fields(value, 4, 4)
    return f"{high & 0xFFFFFFFF:X}/{low & 0xFFFFFFFF:X}"


def print_tid(value: bytes) -> str:
    """Text of a value, as PostgreSQL's tidout prints it, from its binary form."""
    block, offset = fields(value, 4, 2)
    return f"({block & 0xFFFFFFFF},{offset & 0xFFFF})"


def print_snapshot(value: bytes) -> str:
    """Text of a txid_snapshot or pg_snapshot: ``xmin:xmax:xip,xip``."""
    cursor = Cursor(value)
    count = cursor.number(4)
    xmin, xmax = cursor.unsigned(8), cursor.unsigned(8)
    in_progress = [str(cursor.unsigned(8)) for _ in range(count)]
    cursor.close()
    return f"{xmin}:{xmax}:{','.join(in_progress)}"


def print_numeric(value: bytes) -> str:
    """numeric_out: digits in base 10000, the first worth 10000 ** weight."""
    cursor = Cursor(value)
    count, weight, sign, display_scale = struct.unpack(">HhHH", cursor.take(8))
    digits = struct.unpack(f">{count}H", cursor.take(2 * count))
    cursor.close()
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    is_known = sign in (_POSITIVE, _NEGATIVE) and display_scale <= _MAX_SCALE
    if not is_known or any(digit >= 10000 for digit in digits):
        raise Misshapen
    places = (display_scale + 3) // 4
    whole = max(weight + 1, 0)  # groups before the point; below 1 they begin after it
    first = min(weight + 1, 0)
    zeros = (0,) * max(weight + 1 + places - count, 0)
    groups = ((0,) * -first + digits + zeros)[: whole + places]
    text = "%04d" * len(groups) % groups
    integer, fraction = text[: 4 * whole].lstrip("0") or "0", text[4 * whole :][:display_scale]
    minus = "-" if sign == _NEGATIVE else ""
    return f"{minus}{integer}.{fraction}" if display_scale else f"{minus}{integer}"
