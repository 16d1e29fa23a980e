"""Turn a literal's text into its type's canonical output, or the error of its input function.

Literals that depend on the server's settings or the time (``'now'``, ``'Jan 1 2024'``), and types
whose text pgsluice cannot normalise, are refused by pgsluice only: PostgreSQL accepts them.

Source: the types' input functions under src/backend/utils/adt/.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import literals_datetime as times
from pgsluice.row_filter.bad_literals import BadLiteral, invalid, not_exact
from pgsluice.row_filter.literals_array import read_array
from pgsluice.row_filter.literals_json import read_json, read_jsonb
from pgsluice.row_filter.literals_numeric import floating, integer, numeric, oid


def canonical(catalog: c.Catalog, type_oid: int, text: str, typmod: int = -1) -> str:
    """The canonical output of a literal.

    Raises:
        BadLiteral: PostgreSQL refuses it, or only pgsluice cannot read it.
    """
    if reader := (_READERS.get(type_oid) or times.READERS.get(type_oid)):
        return reader(text)
    if type_oid == c.INTERVAL:
        return times.interval(text, typmod)
    if type_oid == c.RECORD:
        raise BadLiteral("input of anonymous composite types is not implemented")
    row = catalog.type(type_oid)
    if row.element:
        return read_array(text, lambda value: canonical(catalog, row.element, value))
    if row.kind == "e":
        if row.labels is not None and text not in row.labels:
            raise BadLiteral(f'invalid input value for enum {row.name}: "{text}"')
        return text
    if type_oid >= c.FIRST_NORMAL_OID:
        return text  # a user-defined type: the check of the filter refuses it
    raise not_exact(
        f"a constant of type {row.display}",
        "Its canonical form is known to a server only.",
    )


_BOOLEANS = {
    "t": ("true", "yes", "on", "1"), "f": ("false", "no", "off", "0"),
}  # fmt: skip


def _boolean(text: str) -> str:
    word = text.strip(" \t\n\r\f\v").lower()
    for value, names in _BOOLEANS.items():
        if any(word and name.startswith(word) and (word != "o") for name in names):
            return value
    raise invalid("boolean", text)


def _as_is(text: str) -> str:
    return text


def _name(text: str) -> str:
    data = text.encode()
    return text if len(data) < 64 else data[:63].decode("utf-8", "ignore")


def _char(text: str) -> str:
    """``"char"``: one byte."""
    if re.fullmatch(r"\\[0-3][0-7][0-7]", text):
        code = int(text[1:], 8)
        return chr(code) if 0 < code < 128 else ("" if code == 0 else text)
    data = text.encode()[:1]
    if data and data[0] >= 128:
        return f"\\{data[0]:03o}"
    return data.decode()


def _bytea(text: str) -> str:
    if text.startswith("\\x"):
        for pair in re.findall(r"[ \t\n\r]+|..?", text[2:], re.DOTALL):
            for digit in pair.strip(" \t\n\r") and pair:
                if digit not in "0123456789abcdefABCDEF":
                    raise BadLiteral(f'invalid hexadecimal digit: "{digit}"')
        digits = re.sub(r"[ \t\n\r]", "", text[2:])
        if len(digits) % 2:
            raise BadLiteral("invalid hexadecimal data: odd number of digits")
        return "\\x" + digits.lower()
    data = text.encode()
    out = bytearray()
    index = 0
    while index < len(data):
        if data[index : index + 1] != b"\\":
            out.append(data[index])
            index += 1
        elif data[index + 1 : index + 2] == b"\\":
            out.append(0x5C)
            index += 2
        elif re.match(rb"[0-3][0-7][0-7]", data[index + 1 : index + 4]):
            out.append(int(data[index + 1 : index + 4], 8))
            index += 4
        else:
            raise BadLiteral("invalid input syntax for type bytea")
    return "\\x" + out.hex()


def _uuid(text: str) -> str:
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    if not re.fullmatch(r"[0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7}", inner):
        raise invalid("uuid", text)
    d = inner.replace("-", "").lower()
    return f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}"


def _bits(text: str) -> str:
    if text[:1] in ("x", "X"):
        for digit in text[1:]:
            if digit not in "0123456789abcdefABCDEF":
                raise BadLiteral(f'"{digit}" is not a valid hexadecimal digit')
        return "".join(f"{int(digit, 16):04b}" for digit in text[1:])
    digits = text[1:] if text[:1] in ("b", "B") else text
    for digit in digits:
        if digit not in "01":
            raise BadLiteral(f'"{digit}" is not a valid binary digit')
    return digits


def _inet(is_network: bool) -> Callable[[str], str]:
    import ipaddress

    name = "cidr" if is_network else "inet"

    def read(text: str) -> str:
        address, slash, bits = text.partition("/")
        if ":" in address and "." in address:
            raise not_exact(f"an {name} constant of IPv4 in IPv6", "Its form is PostgreSQL's own.")
        try:
            if is_network:
                full = text if slash else f"{address}/{'128' if ':' in address else '32'}"
                if re.fullmatch(r"[0-9.]+", address) and address.count(".") < 3:
                    raise not_exact(f"a short {name} constant", "Classful abbreviations.")
                try:
                    return str(ipaddress.ip_network(full))
                except ValueError:
                    if _valid_interface(full):
                        raise BadLiteral(
                            f'invalid cidr value: "{text}"',
                            detail="Value has bits set to right of mask.",
                        ) from None
                    raise
            host = ipaddress.ip_interface(text)
        except ValueError:
            raise invalid(name, text) from None
        if slash and not bits.isdigit():
            raise invalid(name, text)
        return str(host) if host.network.prefixlen != host.max_prefixlen else str(host.ip)

    return read


def _valid_interface(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True


def _macaddr(count: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        digits = re.sub(r"[:.-]", "", text.strip())
        if not re.fullmatch(rf"[0-9a-fA-F]{{{count * 2}}}", digits):
            if re.fullmatch(r"[0-9a-fA-F:.\- ]+", text):
                raise not_exact(f"an unusual {name} constant", "The C library reads it.")
            raise invalid(name, text)
        lower = digits.lower()
        return ":".join(lower[i : i + 2] for i in range(0, len(lower), 2))

    return read


_READERS: dict[int, Callable[[str], str]] = {
    c.BOOL: _boolean, c.INT2: integer(16, "smallint"), c.INT4: integer(32, "integer"),
    c.INT8: integer(64, "bigint"), c.OID: oid, c.NUMERIC: numeric,
    c.FLOAT4: floating(32, "real"), c.FLOAT8: floating(64, "double precision"),
    c.TEXT: _as_is, c.VARCHAR: _as_is, c.BPCHAR: _as_is, c.UNKNOWN: _as_is, c.CSTRING: _as_is,
    c.NAME: _name, c.CHAR: _char, c.BYTEA: _bytea, c.UUID: _uuid, c.BIT: _bits,
    c.VARBIT: _bits, c.JSON: read_json, c.JSONB: read_jsonb, 869: _inet(False), 650: _inet(True),
    829: _macaddr(6, "macaddr"), 774: _macaddr(8, "macaddr8"),
}  # fmt: skip
