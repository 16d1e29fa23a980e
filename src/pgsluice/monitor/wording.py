"""Formats bytes, durations, counts, names, relation states and progress for users."""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.events import INSERTS_ONLY, CopyAmount
from pgsluice.lsn import Lsn

STATES = {
    "i": "to copy",
    "d": "copying",
    "f": "catching up",
    "s": "synchronized",
    "r": "ready",
    "p": "parked",
    "u": "unpublished",
}
"""PostgreSQL's relation states (pg_subscription_rel.srsubstate), ``p`` and ``u``, as words."""
WAITS = "cannot be applied"
"""The text for a copied table with an error."""


def state_words(state: str, incomplete: Sequence[str] = ()) -> str:
    """The name of a table's state, with words for changes that its target does not get."""
    words = STATES.get(state, state)
    if state not in ("f", "s", "r") or not incomplete:
        return words
    others = [why for why in incomplete if not why.startswith(INSERTS_ONLY)]
    lacks = [INSERTS_ONLY] * (len(others) < len(incomplete)) + ["incomplete"] * bool(others)
    return ", ".join([words, *lacks])


_LEAST_FIRST = ("rows_per_s", "ranges", "bytes_per_s", "rows", "bytes", "left")
"""Parts of a copy's amount, in the order in which they are omitted if there is no room."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def lsn_text(lsn: Lsn | None) -> str | None:
    """An LSN for JSON, as PostgreSQL writes it; None if it is unknown."""
    return None if lsn is None else str(lsn)


def format_bytes(count: int | None) -> str:
    """Bytes as text, such as ``1.5 KiB`` for 1536; ``-`` if unknown."""
    if count is None:
        return "-"
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def format_seconds(seconds: float | None) -> str:
    """``0.25`` as ``0.25 s``, ``75`` as ``1 min 15 s``; ``-`` if unknown."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_count(count: int | None) -> str:
    """A number as text, such as ``1,234,567``; ``-`` if unknown."""
    return "-" if count is None else f"{count:,}"


def format_amount(amount: CopyAmount, width: int | None = None) -> str:
    """An amount, such as ``12 of 40 ranges, 1,200,000 rows, 0.8 GiB of 2.5 GiB, 40.0 MiB/s, 44 s
    left``.

    Args:
        width: the available characters: the least important parts are omitted.
    """
    parts = {
        "ranges": counted(amount.all_ranges, "range", amount.ranges),
        "rows": counted(amount.rows, "row"),
        "bytes": f"{format_bytes(amount.bytes)} of {format_bytes(amount.all_bytes)}",
    }
    if amount.bytes_per_s:
        parts["bytes_per_s"] = f"{format_bytes(round(amount.bytes_per_s))}/s"
        parts["rows_per_s"] = f"{format_count(round(amount.rows_per_s))} rows/s"
    if amount.bytes_per_s and amount.left_s is not None:
        parts["left"] = f"about {format_seconds(amount.left_s)} left"
    for name in _LEAST_FIRST:
        if width is None or len(", ".join(parts.values())) <= width:
            break
        parts.pop(name, None)
    return ", ".join(parts.values())


def as_word(words: str) -> str:
    """A state's words as one word, for a metric or a line of the log."""
    return words.replace(" ", "_")


def counted(count: int, noun: str, done: int | None = None) -> str:
    """A number of things, as ``1 row``, ``1,200 rows``, or ``3 of 40 tables`` with 3 done."""
    things = f"1 {noun}" if count == 1 else f"{format_count(count)} {noun}s"
    return things if done is None else f"{format_count(done)} of {things}"
