"""Parses sizes and durations such as ``"16 MiB"`` and ``"10m"``.

Only binary units are accepted (KiB, MiB, GiB, TiB). ``MB`` is ambiguous: 1024 x 1024 bytes in
PostgreSQL, a million almost everywhere else.
"""

from __future__ import annotations

import re

_SIZE_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"\A\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")
_DURATION = re.compile(r"\A\s*(?:\d+(?:\.\d+)?\s*(?:ms|s|min|m|h|d)\s*)+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")


def parse_size(text: str) -> int:
    """Parse a size such as ``"16 MiB"`` or ``"4096"`` to bytes.

    Raises:
        ValueError: the text is not a size; the message is the rest of a sentence about a key.
    """
    match = _SIZE.match(text)
    factor = _SIZE_UNITS.get((match[2] or "b").lower()) if match else None
    if match is None or factor is None:
        raise ValueError('has to be a number of bytes, or text such as "16 MiB" (KiB, MiB, GiB)')
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_duration(text: str) -> float:
    """Parse a duration such as ``"10m"``, ``"0s"`` or ``"1h 30m"`` to seconds.

    Raises:
        ValueError: the text is not a duration; the message is the rest of a sentence about a key.
    """
    if _DURATION.match(text) is None:
        raise ValueError('has to be seconds, or text such as "10m" (ms, s, m, h, d)')
    return sum(float(n) * _DURATION_UNITS[unit] for n, unit in _DURATION_PART.findall(text))
