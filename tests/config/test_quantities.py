"""Parsing sizes and durations with units."""

from __future__ import annotations

import pytest

from pgsluice.config.values.quantities import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1 KiB", 1024), ("16MiB", 2**24), ("1.5 gib", 3 * 2**29),
     ("8 B", 8), ("2 TiB", 2**41)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 MB", "1 kB", "1e3", "1 2 KiB", "²"])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="has to be a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("10m", 600), ("1h 30m", 5400), ("250 ms", 0.25), ("2d", 172800), ("5min", 300)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1 year", "10 minutes", "1s,2s"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="has to be seconds"):
        parse_duration(text)
