"""inet, cidr, and pg_lsn.

Source: src/backend/utils/adt/network.c, pg_lsn.c.
"""

from __future__ import annotations

from decimal import Decimal

from pgsluice.row_filter.kernels.kernel import kernel
from pgsluice.row_filter.values.networks import Inet, format_inet


def _is_within(a: Inet, b: Inet) -> bool:
    """Whether network ``b`` contains network ``a``."""
    return a.family == b.family and a.bits >= b.bits and a.prefix(b.bits) == b.prefix(b.bits)


@kernel("network_subeq(inet,inet)")
def _sub_or_equal(a: Inet, b: Inet) -> bool:
    return _is_within(a, b)


@kernel("network_sub(inet,inet)")
def _sub(a: Inet, b: Inet) -> bool:
    return _is_within(a, b) and a.bits > b.bits


@kernel("network_supeq(inet,inet)")
def _sup_or_equal(a: Inet, b: Inet) -> bool:
    return _is_within(b, a)


@kernel("network_sup(inet,inet)")
def _sup(a: Inet, b: Inet) -> bool:
    return _sub(b, a)


@kernel("network_overlap(inet,inet)")
def _overlap(a: Inet, b: Inet) -> bool:
    bits = min(a.bits, b.bits)
    return a.family == b.family and a.prefix(bits) == b.prefix(bits)


@kernel("family(inet)")
def _family(inet: Inet) -> int:
    return inet.family


@kernel("masklen(inet)")
def _masklen(inet: Inet) -> int:
    return inet.bits


@kernel("network(inet)", "cidr(inet)")
def _network(inet: Inet) -> Inet:
    shift = inet.width - inet.bits
    return Inet(inet.family, inet.address >> shift << shift, inet.bits)


@kernel("host(inet)")
def _host(inet: Inet) -> str:
    return format_inet(inet._replace(bits=inet.width))


@kernel("text(inet)")
def _with_netmask(inet: Inet) -> str:
    return f"{_host(inet)}/{inet.bits}"


def _hosts(inet: Inet) -> int:
    """The bits of an address that its netmask leaves to hosts."""
    return (1 << inet.width - inet.bits) - 1


@kernel("netmask(inet)")
def _netmask(inet: Inet) -> Inet:
    return Inet(inet.family, ((1 << inet.width) - 1) ^ _hosts(inet), inet.width)


@kernel("hostmask(inet)")
def _hostmask(inet: Inet) -> Inet:
    return Inet(inet.family, _hosts(inet), inet.width)


@kernel("broadcast(inet)")
def _broadcast(inet: Inet) -> Inet:
    return inet._replace(address=inet.address | _hosts(inet))


@kernel("trunc(macaddr)")
def _manufacturer(address: str) -> str:
    return address[:8] + ":00:00:00"


@kernel("macaddr8(macaddr)")
def _to_eight_bytes(address: str) -> str:
    return f"{address[:8]}:ff:fe{address[8:]}"


@kernel("inet_same_family(inet,inet)")
def _same_family(a: Inet, b: Inet) -> bool:
    return a.family == b.family


@kernel("pg_lsn_mi(pg_lsn,pg_lsn)", "pg_wal_lsn_diff(pg_lsn,pg_lsn)")
def _bytes_between(a: int, b: int) -> Decimal:
    return Decimal(a - b)
