"""The user's choices for types that can map to more than one Arrow type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgsluice.errors import ConfigError
from pgsluice.masks import ColumnMask

_DECIMAL = re.compile(r"\Adecimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)\Z")

NESTED = ("struct", "map", "variant")
"""What a column can be chosen to be instead of text."""

MAX_PRECISION = 38
"""Arrow's decimal128, Spark and Delta hold so many digits."""


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The type that a PostgreSQL type maps to, where there is a choice.

    Attributes:
        numeric: ``string``, ``double`` or ``decimal(p,s)``: the type of a ``numeric`` column
            without a precision, or with a precision over 38 digits.
        for_column: the user has chosen for one column. ``numeric`` also applies if it has a
            precision, and ``string`` to a column of any type: PostgreSQL's text of its values.
        nested: the user has chosen ``struct`` (composites, ranges, multiranges and arrays of them)
            or ``map`` (hstore) for one column, or ``variant`` (json and jsonb) for one or for all;
            empty: such columns are text.
        mask: how the text of a column's values is masked; only for a column that is a string.

    Raises:
        ConfigError: ``numeric`` is none of these.
    """

    numeric: str = "string"
    for_column: bool = False
    nested: str = ""
    mask: ColumnMask | None = None

    def __post_init__(self) -> None:
        self.numeric_decimal()

    @property
    def is_text(self) -> bool:
        """Whether a column is text, whatever its PostgreSQL type."""
        return self.for_column and self.numeric == "string" and not self.nested

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
            f"{self.numeric!r} is not a type for numeric columns (the setting or option numeric, "
            "or types of a subscription)",
            hint='choose "string", "double", or "decimal(p,s)" with p from 1 to 38 and s up to p',
        )
