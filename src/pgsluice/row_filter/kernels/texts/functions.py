"""Text: parts, trimming, case, concatenation, and casts between its types.

Characters are code points, as in a UTF-8 database.
Source: src/backend/utils/adt/varlena.c, oracle_compat.c, varchar.c, name.c.
"""

from __future__ import annotations

import base64
import hashlib
import operator
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from pgsluice.row_filter.kernels.arithmetic import out_of_range
from pgsluice.row_filter.kernels.kernel import (
    Compute,
    Refused,
    Site,
    kernel,
    register,
    register_all,
    sited,
)
from pgsluice.row_filter.kernels.texts.letters import cased, encoder
from pgsluice.row_filter.values import CannotKnow, SqlError, Value
from pgsluice.row_filter.values.strings import hexadecimal_digits, is_octal

S = TypeVar("S", str, bytes)
_NAME_BYTES: Final = 63
_MOST_BYTES: Final = 0x3FFFFFFF
_INT4_MAX: Final = 2**31 - 1

sited("lower(text)", reads_characters=True)(partial(cased, is_lower=True))
sited("upper(text)", reads_characters=True)(partial(cased, is_lower=False))


# Lengths


def _of_bytes(compute: Callable[[bytes], Value]) -> Callable[[Site], Compute]:
    """A function of a text's bytes in the database's encoding."""

    def make(site: Site) -> Compute:
        encode = encoder(site)
        return lambda text: compute(encode(text))

    return make


sited("octet_length(text)", "octet_length(bpchar)")(_of_bytes(len))
sited("bit_length(text)")(_of_bytes(lambda data: 8 * len(data)))


register_all(
    {
        "length(text) char_length(text) character_length(text) textlen(text)": len,
        "length(bpchar) char_length(bpchar) character_length(bpchar)": (
            lambda text: len(text.rstrip(" "))
        ),
        "length(bytea) octet_length(bytea)": len,
        "bit_length(bytea)": lambda data: 8 * len(data),
    }
)


# Parts


def _substring(text: S, start: int, count: int | None = None) -> S:
    if count is None:
        return text[max(start - 1, 0) :]
    if count < 0:
        raise SqlError("substring_error", "negative substring length not allowed")
    end = start + count
    return text[max(start - 1, 0) : max(end - 1, 0)]


for _name in ("substr", "substring"):
    for _type in ("text", "bytea"):
        register(f"{_name}({_type},int4) {_name}({_type},int4,int4)", _substring)


register_all(
    {
        "left(text,int4)": lambda text, count: text[:count],
        "right(text,int4)": lambda text, count: text[
            max(len(text) - count, 0) if count >= 0 else -count :
        ],
    }
)


@kernel("split_part(text,text,int4)")
def _split_part(text: str, separator: str, number: int) -> str:
    if number == 0:
        raise SqlError("invalid_parameter_value", "field position must not be zero")
    if not text:
        return ""
    parts = text.split(separator) if separator else [text]
    index = number - 1 if number > 0 else len(parts) + number
    return parts[index] if 0 <= index < len(parts) else ""


# Trimming and new texts

register_all(
    {
        "strpos(text,text) position(text,text) position(bytea,bytea)": (
            lambda text, part: text.find(part) + 1
        ),
        "starts_with(text,text)": str.startswith,
        "btrim(text,text)": str.strip,
        "btrim(bytea,bytea)": bytes.strip,
        "btrim(text)": lambda text: text.strip(" "),
        "ltrim(text,text)": str.lstrip,
        "ltrim(bytea,bytea)": bytes.lstrip,
        "ltrim(text)": lambda text: text.lstrip(" "),
        "rtrim(text,text)": str.rstrip,
        "rtrim(bytea,bytea)": bytes.rstrip,
        "rtrim(text) text(bpchar)": lambda text: text.rstrip(" "),
        "textcat(text,text) byteacat(bytea,bytea)": operator.add,
        "replace(text,text,text)": lambda text, old, new: text.replace(old, new) if old else text,
        "reverse(text) reverse(bytea)": lambda text: text[::-1],
        "to_hex(int4)": lambda number: f"{number % 2**32:x}",
        "to_hex(int8)": lambda number: f"{number % 2**64:x}",
    }
)


@kernel("translate(text,text,text)")
def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for index, character in enumerate(old):
        table.setdefault(ord(character), new[index] if index < len(new) else None)
    return text.translate(table)


@sited("ascii(text)")
def _first_code(site: Site) -> Compute:
    """The code point in UTF8, the byte in an encoding with one byte a character."""
    if site.text_rules.encoding == "UTF8":
        return lambda text: ord(text[0]) if text else 0
    encode = encoder(site)
    return lambda text: encode(text[0])[0] if text else 0


@kernel("md5(bytea)")
def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


sited("md5(text)")(_of_bytes(_md5))


def _digest(name: str) -> Callable[[bytes], bytes]:
    return lambda data: hashlib.new(name, data).digest()


for _name in ("sha224", "sha256", "sha384", "sha512"):
    register(f"{_name}(bytea)", _digest(_name))


def _escaped(data: bytes) -> str:
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 128 else f"\\{byte:03o}"
        for byte in data
    )


def _base64(data: bytes) -> str:
    """A line has 76 characters, and only full lines end."""
    lines = (base64.b64encode(data[i : i + 57]).decode() for i in range(0, len(data), 57))
    return "".join(line + "\n" if len(line) == 76 else line for line in lines)


_ENCODINGS: Final[dict[str, Callable[[bytes], str]]] = {
    "hex": bytes.hex,
    "escape": _escaped,
    "base64": _base64,
}


@sited("encode(bytea,text)")
def _encode(site: Site) -> Compute:
    name = site.constants[1]
    encode = _ENCODINGS.get(name.lower()) if isinstance(name, str) else None
    if encode is None:
        raise Refused("the encoding is none of hex, base64 and escape, or no constant")
    return lambda data, _: encode(data)


@sited("decode(text,text)")
def _decode(site: Site) -> Compute:
    name = site.constants[1]
    if not isinstance(name, str) or name.lower() != "hex":
        raise Refused("the encoding is not hex, or no constant", "decode with 'hex'")
    return lambda text, _: _from_hex(text)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(hexadecimal_digits(text, "…"))
    except ValueError as error:
        raise SqlError("invalid_parameter_value", str(error)) from None


def _fitting(length: int) -> int:
    if 4 * length + 4 > _MOST_BYTES:
        raise SqlError("program_limit_exceeded", "requested length too large")
    return max(length, 0)


def _padding(text: str, length: int, fill: str) -> str:
    """The characters to add to a text to give it a length."""
    missing = _fitting(length) - len(text)
    return (fill * (missing // len(fill) + 1))[:missing] if missing > 0 and fill else ""


register_all(
    {
        "lpad(text,int4,text) lpad(text,int4)": (
            lambda text, length, fill=" ": _padding(text, length, fill) + text[: max(length, 0)]
        ),
        "rpad(text,int4,text) rpad(text,int4)": (
            lambda text, length, fill=" ": text[: max(length, 0)] + _padding(text, length, fill)
        ),
    }
)


@sited("repeat(text,int4)")
def _repeat(site: Site) -> Compute:
    encode = encoder(site)

    def run(text: str, count: int) -> str:
        if count > 0 and len(encode(text)) * count + 4 > _MOST_BYTES:
            raise SqlError("program_limit_exceeded", "requested length too large")
        return text * count

    return run


@kernel("get_byte(bytea,int4)")
def _get_byte(data: bytes, index: int) -> int:
    if not 0 <= index < len(data):
        message = f"index {index} out of valid range, 0..{len(data) - 1}"
        raise SqlError("array_subscript_error", message)
    return data[index]


@kernel("get_bit(bytea,int8)")
def _get_bit(data: bytes, index: int) -> int:
    if not 0 <= index < len(data) * 8:
        message = f"index {index} out of valid range, 0..{len(data) * 8 - 1}"
        raise SqlError("array_subscript_error", message)
    return data[index // 8] >> index % 8 & 1


# Casts


def _fitted(text: str, typmod: int, is_explicit: bool, type_name: str) -> str:
    """Cut to a length; an implicit cast may cut blanks only."""
    limit = typmod - 4
    if limit < 0 or len(text) <= limit:
        return text
    if not is_explicit and text[limit:].strip(" "):
        raise SqlError(
            "string_data_right_truncation", f"value too long for type {type_name}({limit})"
        )
    return text[:limit]


register_all(
    {
        "varchar(varchar,int4,bool)": (
            lambda text, typmod, is_explicit: _fitted(
                text, typmod, is_explicit, "character varying"
            )
        ),
        "bpchar(bpchar,int4,bool)": (
            lambda text, typmod, is_explicit: _fitted(text, typmod, is_explicit, "character").ljust(
                max(typmod - 4, 0)
            )
        ),
        "text(name) bpchar(name) varchar(name)": lambda text: text,
        "text(bool)": lambda truth: "true" if truth else "false",
        "int4(char)": lambda byte: byte - 256 if byte >= 128 else byte,
    }
)


@sited("name(text)", "name(varchar)")
def _to_name(site: Site) -> Callable[[str], str]:
    encode, codec = encoder(site), str(site.text_rules.codec)
    return lambda text: encode(text)[:_NAME_BYTES].decode(codec, "ignore")


@sited("name(bpchar)")
def _blanked_to_name(site: Site) -> Compute:
    cut = _to_name(site)
    return lambda text: cut(text).rstrip(" ")


@kernel("text(char)")
def _char_to_text(byte: int) -> str:
    if byte >= 128:
        raise CannotKnow('a byte above 127 as text of type "char" is not known in UTF-8')
    return chr(byte) if byte else ""


def _to_char(data: bytes) -> int:
    if is_octal(data):
        raise CannotKnow('versions of PostgreSQL read an octal text as different "char" values')
    return data[0] if data else 0


sited("char(text)")(_of_bytes(_to_char))


@kernel("char(int4)")
def _integer_to_char(number: int) -> int:
    if not -128 <= number <= 127:
        raise out_of_range('"char" out of range')
    return number % 256
