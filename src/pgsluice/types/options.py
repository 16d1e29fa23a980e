"""Choices that a user makes for types that have more than one way to travel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgsluice.errors import ConfigError

_DECIMAL = re.compile(r"\Adecimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)\Z")

MAX_PRECISION = 38
"""The most digits that Arrow's decimal128, Spark and Delta hold."""


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """How types travel where there is a choice.

    Attributes:
        numeric: ``string``, ``double`` or ``decimal(p,s)``: what becomes of ``numeric``
            without a precision or with one over 38 digits.
        numeric_always: the choice also takes numerics that have a precision: how a user
            overrides one column.

    Raises:
        ConfigError: ``numeric`` is none of these.
    """

    numeric: str = "string"
    numeric_always: bool = False

    def __post_init__(self) -> None:
        self.numeric_decimal()

    def numeric_decimal(self) -> tuple[int, int] | None:
        """Precision and scale when ``numeric`` is a decimal, else None."""
        if self.numeric in ("string", "double"):
            return None
        match = _DECIMAL.match(self.numeric)
        if match is not None:
            precision, scale = int(match[1]), int(match[2])
            if 1 <= precision <= MAX_PRECISION and scale <= precision:
                return precision, scale
        raise ConfigError(
            f"{self.numeric!r} is not a way for numeric to travel",
            hint='use "string", "double", or "decimal(p,s)" with p from 1 to 38 and s up to p',
        )
