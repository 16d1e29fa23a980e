"""inet and cidr; constants of macaddr and macaddr8.

Source: src/backend/utils/adt/network.c (``network_cmp_internal``), inet_net_pton.c, mac.c, mac8.c.
"""

from __future__ import annotations

import ipaddress
import re
from functools import total_ordering
from typing import Final, NamedTuple

from pgsluice.row_filter.values.value_type import NotReadable, ValueType, invalid, not_exact
from pgsluice.sql import SqlRefused
from pgsluice.types.binary_to_text.network import print_inet


class Inet(NamedTuple):
    """An address with its network.

    Attributes:
        family: 4 or 6.
        address: as an integer.
        bits: the number of bits of the netmask.
    """

    family: int
    address: int
    bits: int

    @property
    def width(self) -> int:
        """The number of bits of the family's addresses."""
        return 32 if self.family == 4 else 128

    def prefix(self, bits: int) -> int:
        """The first bits of the address, as an integer."""
        return self.address >> (self.width - bits)


def parse_inet(text: str) -> Inet:
    """Parse ``10.1.2.3``, ``10.1.2.3/8``, ``::1``."""
    address, slash, bits = text.partition("/")
    try:
        parsed = ipaddress.ip_address(address)
        width = parsed.max_prefixlen
        return Inet(parsed.version, int(parsed), int(bits) if slash else width)
    except ValueError:
        raise NotReadable("inet") from None


def format_inet(inet: Inet, *, is_network: bool = False) -> str:
    """Print an address; the netmask of a single host is omitted, except for a cidr."""
    packed = inet.address.to_bytes(inet.width // 8, "big")
    family = 2 if inet.family == 4 else 3
    return print_inet(bytes([family, inet.bits, is_network, len(packed)]) + packed)


def inet_key(inet: Inet) -> tuple[int, _Prefix]:
    """The order: by family, common network bits, shorter netmask, whole address."""
    return inet.family, _Prefix(inet)


@total_ordering
class _Prefix:
    """The order of two addresses of one family."""

    __slots__ = ("inet",)

    def __init__(self, inet: Inet) -> None:
        self.inet = inet

    def _key(self, other: _Prefix) -> tuple[int, int, int]:
        common = min(self.inet.bits, other.inet.bits)
        return self.inet.prefix(common), self.inet.bits, self.inet.address

    def __lt__(self, other: _Prefix) -> bool:
        return self._key(other) < other._key(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Prefix) and self.inet == other.inet

    def __hash__(self) -> int:
        return hash(self.inet)


NETWORKS: Final = (
    ValueType("inet", parse_inet, inet_key),
    ValueType("cidr", parse_inet, inet_key),
)


_V4: Final = re.compile(r"(\d+(?:\.\d+){0,3})(?:/(\d+))?", re.ASCII)
_V6: Final = re.compile(r"([0-9a-fA-F:]+(?:\d+\.\d+\.\d+\.\d+)?)(?:/(0|[1-9]\d{0,2}))?", re.ASCII)


def read_inet(text: str) -> str:
    """An address with its network; IPv4's bytes beyond the netmask are optional."""
    return format_inet(_v6(text, "inet") if ":" in text else _v4(text))


def read_cidr(text: str) -> str:
    """A network: no bits may be set outside its netmask, which is guessed if it is missing."""
    network = _v6(text, "cidr") if ":" in text else _v4_network(text)
    if network.address & ((1 << network.width - network.bits) - 1):
        raise SqlRefused(
            f'invalid cidr value: "{text}"', detail="Value has bits set to right of mask."
        )
    return format_inet(network, is_network=True)


def _v6(text: str, name: str) -> Inet:
    match = _V6.fullmatch(text)
    if match is None:
        raise invalid(name, text)
    try:
        address = ipaddress.IPv6Address(match[1])
    except ValueError:
        raise invalid(name, text) from None
    bits = int(match[2] or 128)
    if bits > 128:
        raise invalid(name, text)
    return Inet(6, int(address), bits)


def _v4_parts(text: str, name: str) -> tuple[list[int], int | None]:
    match = _V4.fullmatch(text)
    if match is None or any(len(digits) > 9 for digits in re.findall(r"\d+", text)):
        raise invalid(name, text)
    parts = [int(part) for part in match[1].split(".")]
    bits = None if match[2] is None else int(match[2])
    if max(parts) > 255 or (bits or 0) > 32:
        raise invalid(name, text)
    return parts, bits


def _address(parts: list[int]) -> int:
    return int.from_bytes(bytes(parts).ljust(4, b"\0"), "big")


def _v4(text: str) -> Inet:
    parts, bits = _v4_parts(text, "inet")
    # the last byte that is given has to hold some of the network's bits, and the next one none
    if len(parts) < 4 and (bits is None or (bits + 7) // 8 > len(parts)):
        raise invalid("inet", text)
    return Inet(4, _address(parts), 32 if bits is None else bits)


def _v4_network(text: str) -> Inet:
    parts, bits = _v4_parts(text, "cidr")
    if bits is None:
        bits = 32 if len(parts) == 4 else max(_class_bits(parts[0]), 8 * len(parts))
        if parts == [224]:
            bits = 4
    return Inet(4, _address(parts), bits)


def _class_bits(first: int) -> int:
    """The netmask of the address's class, before networks had netmasks."""
    for end, bits in ((128, 8), (192, 16), (224, 24), (240, 8)):
        if first < end:
            return bits
    return 32


_MACADDR: Final = tuple(
    re.compile(form.replace("X", r"([0-9a-fA-F]{1,8})").replace("H", r"([0-9a-fA-F]{2})"))
    for form in (
        "X:X:X:X:X:X", "X-X-X-X-X-X", "HHH[:-]HHH", r"HH\.HH\.HH", "HH-HH-HH", "HHHHHH",
    )
)  # fmt: skip
_MACADDR8: Final = re.compile(
    r"([0-9a-fA-F]{2})((?:[:.-]?[0-9a-fA-F]{2})+)"  # one kind of separator, between bytes
)


def read_macaddr(text: str) -> str:
    """Six bytes, in pairs of digits with separators in one of the usual places."""
    for form in _MACADDR:
        if match := form.fullmatch(text.strip()):
            octets = [int(octet, 16) for octet in match.groups()]
            if max(octets) > 255:
                raise SqlRefused(f'invalid octet value in "macaddr" value: "{text}"')
            return ":".join(f"{octet:02x}" for octet in octets)
    if re.search(r"0[xX]|\+|\S\s+\S", text):
        raise not_exact("a macaddr constant with blanks or signs", "The C library reads it.")
    raise invalid("macaddr", text)


def read_macaddr8(text: str) -> str:
    """Eight bytes; six get ff:fe in their middle."""
    stripped = text.strip()
    match = _MACADDR8.fullmatch(stripped)
    digits = re.sub(r"[:.-]", "", stripped)
    if match is None or len(digits) not in (12, 16) or len(set(stripped) & set(":.-")) > 1:
        raise invalid("macaddr8", text)
    octets = re.findall("..", digits.lower())
    if len(octets) == 6:
        octets[3:3] = ["ff", "fe"]
    return ":".join(octets)
