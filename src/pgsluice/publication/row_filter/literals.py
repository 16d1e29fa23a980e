"""A literal's text -> its type's canonical output, or the error of the type's input function.

What depends on a server's settings or moment (``'now'``, ``'Jan 1 2024'``), and types whose
text nobody here can normalise, are refused as ours: PostgreSQL takes them.

Source: the types' input functions under src/backend/utils/adt/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal

from pgsluice.publication.row_filter import catalog as c


class BadLiteral(Exception):  # noqa: N818
    """The type's input refuses the text, or (``is_ours``) only we cannot read it exactly."""

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        is_ours: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.is_ours = is_ours


_SERVER = "Let the server's own publication (PostgreSQL 15 or newer) do this filter."


def not_exact(what: str, reason: str, hint: str = _SERVER) -> BadLiteral:
    return BadLiteral(
        f"{what}: PostgreSQL accepts this, pgsluice does not", detail=reason, hint=hint,
        is_ours=True,
    )  # fmt: skip


def invalid(type_name: str, text: str) -> BadLiteral:
    return BadLiteral(f'invalid input syntax for type {type_name}: "{text}"')


def canonical(catalog: c.Catalog, oid: int, text: str, typmod: int = -1) -> str:
    """The canonical output of a literal.

    Raises:
        BadLiteral: with PostgreSQL's message, or because only we cannot read it.
    """
    from pgsluice.publication.row_filter import literals_datetime as times

    if reader := (_READERS.get(oid) or times.READERS.get(oid)):
        return reader(text)
    if oid == c.INTERVAL:
        return times.interval(text, typmod)
    row = catalog.type(oid)
    if row.element:
        return _array(catalog, row.element, text)
    if row.kind == "e":
        if row.labels is not None and text not in row.labels:
            raise BadLiteral(f'invalid input value for enum {row.name}: "{text}"')
        return text
    if oid >= c.FIRST_NORMAL_OID:
        return text  # of a user-defined type: the check refuses it
    raise not_exact(
        f"a constant of type {row.display}",
        "Its canonical form is known to a server only.",
    )


def _integer(bits: int, name: str) -> Callable[[str], str]:
    pattern = re.compile(
        r"\s*([+-]?)(0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[0-9](?:_?[0-9])*)"
        r"\s*",
        re.ASCII,
    )

    def read(text: str) -> str:
        found = pattern.fullmatch(text)
        if found is None:
            raise invalid(name, text)
        digits = found[2].replace("_", "")
        value = int(found[1] + digits, 10 if digits.isdigit() else 0)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise BadLiteral(f'value "{text}" is out of range for type {name}')
        return str(value)

    return read


def _oid(text: str) -> str:
    found = re.fullmatch(r"\s*(-?[0-9]+)\s*", text, re.ASCII)
    if found is None:
        raise invalid("oid", text)
    value = int(found[1])
    if not -(1 << 31) <= value < 1 << 32:
        raise BadLiteral(f'value "{text}" is out of range for type oid')
    return str(value % (1 << 32))


_BOOLEANS = {
    "t": ("true", "yes", "on", "1"), "f": ("false", "no", "off", "0"),
}  # fmt: skip


def _boolean(text: str) -> str:
    word = text.strip(" \t\n\r\f\v").lower()
    for value, names in _BOOLEANS.items():
        if any(word and name.startswith(word) and (word != "o") for name in names):
            return value
    raise invalid("boolean", text)


_DECIMAL = re.compile(
    r"\s*([+-]?)((?:[0-9](?:_?[0-9])*)?(?:\.(?:[0-9](?:_?[0-9])*)?)?)(?:[eE]([+-]?[0-9](?:_?[0-9])*))?\s*",
    re.ASCII,
)
_SPECIAL = {"nan": "NaN", "infinity": "Infinity", "inf": "Infinity"}


def _special(text: str, *, signed_nan: bool = False) -> str | None:
    word = text.strip(" \t\n\r\f\v").lower()
    sign = word[:1] if word[:1] in ("+", "-") else ""
    found = _SPECIAL.get(word[len(sign) :])
    if found == "NaN" and sign:
        return None
    return None if found is None else ("-" + found if sign == "-" else found)


def numeric(text: str) -> str:
    """All digits are kept: ``1.50`` stays so, ``1e3`` is 1000."""
    if special := _special(text):
        return special
    found = _DECIMAL.fullmatch(text)
    if found is None or not re.search(r"[0-9]", found[2]):
        stripped = text.strip()
        if re.fullmatch(r"[+-]?0[xXoObB][0-9a-fA-F_]+", stripped):
            return str(int(_integer(100000, "numeric")(text)))
        raise invalid("numeric", text)
    number = found[1] + found[2].replace("_", "")
    exponent = int((found[3] or "0").replace("_", ""))
    if abs(exponent) > 131072 + 16383:
        raise BadLiteral("value overflows numeric format")
    value = Decimal(number).scaleb(exponent) if exponent == 0 else Decimal(f"{number}e{exponent}")
    shown = format(value, "f")
    integer, _, fraction = shown.partition(".")
    if len(integer.lstrip("-0")) > 131072 or len(fraction) > 16383:
        raise BadLiteral("value overflows numeric format")
    return shown[1:] if shown.startswith("-") and not value else shown


def _float(bits: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if special := _special(text):
            return special
        stripped = text.strip(" \t\n\r\f\v")
        if not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", stripped):
            if re.match(r"[+-]?0[xX]", stripped):
                raise not_exact(f"a hexadecimal constant of type {name}", "The C library reads it.")
            raise invalid(name, text)
        value = float(stripped)
        has_digits = re.search(r"[1-9]", stripped.lower().split("e")[0]) is not None
        shown = _shortest(value, bits)
        if shown in ("Infinity", "-Infinity") or (has_digits and float(shown) == 0):
            raise BadLiteral(f'"{stripped}" is out of range for type {name}')
        return shown

    return read


def _shortest(value: float, bits: int) -> str:
    """The shortest text that reads back the same (extra_float_digits = 1)."""
    import numpy as np

    if bits == 32:
        with np.errstate(over="ignore", under="ignore"):
            value = np.float32(value)  # type: ignore[assignment]
    if np.isinf(value):
        return "-Infinity" if value < 0 else "Infinity"
    if value == 0:
        return "-0" if np.signbit(value) else "0"
    mantissa, exponent = np.format_float_scientific(value, trim="-", unique=True).split("e")
    power = int(exponent)
    if -5 < power < (15 if bits == 64 else 6):
        return np.format_float_positional(value, trim="-", unique=True)
    sign = "-" if power < 0 else "+"
    return f"{mantissa}e{sign}{abs(power):02d}"


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
        digits = re.sub(r"[ \t\n\r]", "", text[2:])
        for digit in digits:
            if digit not in "0123456789abcdefABCDEF":
                raise BadLiteral(f'invalid hexadecimal digit: "{digit}"')
        if len(digits) % 2:
            raise BadLiteral("invalid hexadecimal data: odd number of digits")
        return "\\x" + digits.lower()
    data = text.encode()
    out = bytearray()
    at = 0
    while at < len(data):
        if data[at : at + 1] != b"\\":
            out.append(data[at])
            at += 1
        elif data[at + 1 : at + 2] == b"\\":
            out.append(0x5C)
            at += 2
        elif re.match(rb"[0-3][0-7][0-7]", data[at + 1 : at + 4]):
            out.append(int(data[at + 1 : at + 4], 8))
            at += 4
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


_JSON_SPACE = re.compile(r"[ \t\n\r]*")


def _check_json(text: str, name: str) -> object:
    """Valid as PostgreSQL has it; the message's detail names a token, which we do not."""

    def refuse(constant: str) -> object:
        raise ValueError(constant)

    try:
        return json.loads(
            text, parse_constant=refuse, parse_float=_JsonNumber, parse_int=_JsonNumber,
            object_pairs_hook=_JsonObject,
        )  # fmt: skip
    except (ValueError, RecursionError):
        raise BadLiteral(f"invalid input syntax for type {name}") from None


class _JsonNumber(str):
    __slots__ = ()


class _JsonObject(list):  # type: ignore[type-arg]
    __slots__ = ()


def _json(text: str) -> str:
    _check_json(text, "json")
    return text


def _jsonb(text: str) -> str:
    return _jsonb_text(_check_json(text, "json"))


def _jsonb_text(value: object) -> str:
    if isinstance(value, _JsonObject):
        last = dict(value)
        keys = sorted(last, key=lambda key: (len(key.encode()), key.encode()))
        inner = ", ".join(f"{_json_string(key)}: {_jsonb_text(last[key])}" for key in keys)
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_jsonb_text, value)) + "]"
    if isinstance(value, _JsonNumber):
        return numeric(value)
    if isinstance(value, str):
        return _json_string(value)
    return {None: "null", True: "true", False: "false"}[value]  # type: ignore[index]


def _json_string(text: str) -> str:
    if "\0" in text:
        raise BadLiteral(
            "unsupported Unicode escape sequence", detail="\\u0000 cannot be converted to text."
        )
    return json.dumps(text, ensure_ascii=False)


def _inet(is_network: bool) -> Callable[[str], str]:
    import ipaddress

    name = "cidr" if is_network else "inet"

    def read(text: str) -> str:
        address, slash, bits = text.partition("/")
        try:
            if is_network:
                full = text if slash else f"{address}/{'128' if ':' in address else '32'}"
                if not slash and "." in address and address.count(".") < 3:
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
            raise invalid(name, text)
        found = digits.lower()
        return ":".join(found[i : i + 2] for i in range(0, len(found), 2))

    return read


_READERS: dict[int, Callable[[str], str]] = {
    c.BOOL: _boolean, c.INT2: _integer(16, "smallint"), c.INT4: _integer(32, "integer"),
    c.INT8: _integer(64, "bigint"), c.OID: _oid, c.NUMERIC: numeric,
    c.FLOAT4: _float(32, "real"), c.FLOAT8: _float(64, "double precision"),
    c.TEXT: _as_is, c.VARCHAR: _as_is, c.BPCHAR: _as_is, c.UNKNOWN: _as_is, c.CSTRING: _as_is,
    c.NAME: _name, c.CHAR: _char, c.BYTEA: _bytea, c.UUID: _uuid, c.BIT: _bits,
    c.VARBIT: _bits, c.JSON: _json, c.JSONB: _jsonb, 869: _inet(False), 650: _inet(True),
    829: _macaddr(6, "macaddr"), 774: _macaddr(8, "macaddr8"),
}  # fmt: skip


_ARRAY_TOKEN = re.compile(r'\s*(?:([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+))', re.DOTALL)


def _array(catalog: c.Catalog, element: int, text: str) -> str:
    """``{1,2}`` and nested ones, each element canonical; explicit bounds are not read."""
    stripped = text.strip()
    if stripped.startswith("["):
        raise not_exact("an array constant with explicit bounds", "Its bounds are not kept.")
    if not stripped.startswith("{"):
        raise BadLiteral(
            f'malformed array literal: "{text}"',
            detail='Array value must start with "{" or dimension information.',
        )
    tokens = [found.groups() for found in _ARRAY_TOKEN.finditer(stripped)]
    if "".join(found[0] for found in _ARRAY_TOKEN.finditer(stripped)) != stripped:
        raise BadLiteral(f'malformed array literal: "{text}"')
    position = 0

    def read() -> tuple[str, int]:
        nonlocal position
        position += 1
        parts: list[str] = []
        depths: set[int] = set()
        if tokens[position][0] == "}":
            position += 1
            return "{}", 1
        while True:
            mark, quoted, plain = tokens[position]
            if mark == "{":
                inner, depth = read()
                parts.append(inner)
                depths.add(depth + 1)
            elif quoted is None and plain is None:
                raise IndexError
            else:
                parts.append(_element(catalog, element, quoted, plain))
                depths.add(1)
                position += 1
            mark = tokens[position][0]
            position += 1
            if mark == "}":
                break
            if mark != ",":
                raise IndexError
        if len(depths) != 1:
            raise IndexError
        return "{" + ",".join(parts) + "}", depths.pop()

    try:
        found, _ = read()
    except IndexError:
        raise BadLiteral(f'malformed array literal: "{text}"') from None
    if position != len(tokens):
        raise BadLiteral(f'malformed array literal: "{text}"')
    return found


def _element(catalog: c.Catalog, oid: int, quoted: str | None, plain: str | None) -> str:
    if quoted is None:
        word = (plain or "").strip()
        if word.upper() == "NULL":
            return "NULL"
        value = re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL)
    else:
        value = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
    value = canonical(catalog, oid, value)
    if value == "" or value.upper() == "NULL" or re.search(r'[{},"\\\s]', value):
        escaped = re.sub(r'(["\\])', r"\\\1", value)
        return f'"{escaped}"'
    return value
