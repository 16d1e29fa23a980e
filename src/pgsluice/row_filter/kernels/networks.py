"""inet, cidr, and pg_lsn.

Source: src/backend/utils/adt/network.c, pg_lsn.c.
"""

from __future__ import annotations

from decimal import Decimal

from pgsluice.row_filter.kernels.kernel import register_all
from pgsluice.row_filter.values.networks import Inet, format_inet


def _is_within(a: Inet, b: Inet) -> bool:
    """Whether network ``b`` contains network ``a``."""
    return a.family == b.family and a.bits >= b.bits and a.prefix(b.bits) == b.prefix(b.bits)


def _is_below(a: Inet, b: Inet) -> bool:
    return _is_within(a, b) and a.bits > b.bits


def _overlap(a: Inet, b: Inet) -> bool:
    bits = min(a.bits, b.bits)
    return a.family == b.family and a.prefix(bits) == b.prefix(bits)


def _network(inet: Inet) -> Inet:
    shift = inet.width - inet.bits
    return inet._replace(address=inet.address >> shift << shift)


def _host(inet: Inet) -> str:
    return format_inet(inet._replace(bits=inet.width))


def _hosts(inet: Inet) -> int:
    """The bits of an address that its netmask leaves to hosts."""
    return (1 << inet.width - inet.bits) - 1


def _netmask(inet: Inet) -> Inet:
    return Inet(inet.family, ((1 << inet.width) - 1) ^ _hosts(inet), inet.width)


register_all(
    {
        "network_subeq(inet,inet)": _is_within,
        "network_sub(inet,inet)": _is_below,
        "network_supeq(inet,inet)": lambda a, b: _is_within(b, a),
        "network_sup(inet,inet)": lambda a, b: _is_below(b, a),
        "network_overlap(inet,inet)": _overlap,
        "inet_same_family(inet,inet)": lambda a, b: a.family == b.family,
        "family(inet)": lambda inet: inet.family,
        "masklen(inet)": lambda inet: inet.bits,
        "network(inet) cidr(inet)": _network,
        "host(inet)": _host,
        "text(inet)": lambda inet: f"{_host(inet)}/{inet.bits}",
        "netmask(inet)": _netmask,
        "hostmask(inet)": lambda inet: Inet(inet.family, _hosts(inet), inet.width),
        "broadcast(inet)": lambda inet: inet._replace(address=inet.address | _hosts(inet)),
        # the manufacturer's bytes
        "trunc(macaddr)": lambda address: address[:8] + ":00:00:00",
        "macaddr8(macaddr)": lambda address: f"{address[:8]}:ff:fe{address[8:]}",
        "pg_lsn_mi(pg_lsn,pg_lsn) pg_wal_lsn_diff(pg_lsn,pg_lsn)": lambda a, b: Decimal(a - b),
    }
)
