"""inet and cidr.

Source: src/backend/utils/adt/network.c (``network_cmp_internal``).
"""

from __future__ import annotations

import ipaddress
from functools import total_ordering
from typing import Final, NamedTuple

from pgsluice.row_filter.values.value_type import NotReadable, ValueType
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
        """The first bits of the address."""
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
