"""A growth curve as a picture (SVG). Both axes are logarithmic.

On such axes a cost that is proportional to its cause is a straight line that rises as fast as the
thin diagonal lines do; a flat line is a cost that does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 380, 70, 40, 150, 50
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")


@dataclass(frozen=True, slots=True)
class Curve:
    """Points with coordinates above 0, by rising x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values between two powers of ten to pixels."""

    first: int
    last: int
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        first = math.floor(math.log10(min(values)))
        return cls(first, max(first + 1, math.ceil(math.log10(max(values)))), start, end)

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)

    def powers(self) -> list[float]:
        return [10.0**power for power in range(self.first, self.last + 1)]


def picture(title: str, x_title: str, y_title: str, curves: Sequence[Curve]) -> str:
    """The curves as SVG."""
    points = [point for curve in curves for point in curve.points]
    x = _Axis.of([point[0] for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis.of([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        '     font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, title, "start", bold=True),
        _text((x.start + x.end) / 2, _HEIGHT - 12, x_title),
        _text(_LEFT, _TOP - 6, y_title, "start"),
        *_grid(x, y),
    ]
    for curve, colour in zip(curves, _COLOURS, strict=False):
        lines += _drawn(curve, colour, x, y)
    return "\n".join([*lines, "</svg>", ""])


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for power in x.powers():
        place = x.place(power)
        yield _line([(place, y.start), (place, y.end)], "#d0d7de")
        yield _text(place, y.start + 18, _number(power))
    for power in y.powers():
        place = y.place(power)
        yield _line([(x.start, place), (x.end, place)], "#d0d7de")
        yield _text(x.start - 8, place + 4, _number(power), "end")
    for power in y.powers()[:-1]:  # ten times the cause, ten times the cost
        decades = min(x.last - x.first, round(math.log10(y.powers()[-1] / power)))
        ends = [(10.0**x.first, power), (10.0 ** (x.first + decades), power * 10**decades)]
        yield _line([(x.place(a), y.place(b)) for a, b in ends], "#eaeef2")


def _drawn(curve: Curve, colour: str, x: _Axis, y: _Axis) -> Iterator[str]:
    places = [(x.place(a), y.place(b)) for a, b in curve.points]
    yield _line(places, colour, width=2)
    for (left, top), (_, value) in zip(places, curve.points, strict=True):
        yield f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3" fill="{colour}"/>'
        yield _text(left, top - 8, _number(value), colour=colour)
    yield _text(places[-1][0] + 10, places[-1][1] + 4, curve.name, "start", colour=colour)


def _line(places: Sequence[tuple[float, float]], colour: str, width: int = 1) -> str:
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(
    left: float,
    top: float,
    text: str,
    anchor: str = "middle",
    *,
    colour: str = "#1f2328",
    bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    """As ``0.15``, ``12``, ``10k`` or ``1M``."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
