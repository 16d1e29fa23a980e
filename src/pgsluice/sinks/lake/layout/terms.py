"""What ``partition_by`` lists: columns, and parts of times such as ``month(created_at)``.

The configuration reads it without Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pgsluice.config.validation_errors import choices, did_you_mean

PARTS: Final = ("year", "month", "day", "hour")
_FUNCTION = re.compile(r"(\w+)\(.+\)")
_PART_OF = re.compile(rf"({'|'.join(PARTS)})\((.+)\)")


@dataclass(frozen=True, slots=True)
class Term:
    """One column by which a table is partitioned.

    Attributes:
        column: a column of the table.
        part: ``year``, ``month``, ``day`` or ``hour``: the table gets a column with this part of
            the column's times; None: the column itself.
    """

    column: str
    part: str | None = None

    @classmethod
    def parse(cls, text: str) -> Term:
        """From a column's name, or a part as in ``month(created_at)``."""
        match = _PART_OF.fullmatch(text)
        return cls(text) if match is None else cls(match[2], match[1])

    @property
    def name(self) -> str:
        """The column that has the values, such as ``created_at_month``."""
        return self.column if self.part is None else f"{self.column}_{self.part}"

    def __str__(self) -> str:
        return self.column if self.part is None else f"{self.part}({self.column})"


def why_no_terms(texts: Iterable[str]) -> str | None:
    """Why a table cannot have this ``partition_by`` or ``cluster_by``; None: it can."""
    seen = set[str]()
    for text in texts:
        name = Term.parse(text).name.casefold()
        if (match := _FUNCTION.fullmatch(text)) and match[1] not in PARTS:
            known = did_you_mean(match[1], PARTS) or f"; it can be {choices(PARTS)}"
            return f'has "{text}", and "{match[1]}" is no part of a time{known}'
        if not name:
            return "has an empty name of a column"
        if name in seen:
            return f'has "{text}" twice'
        seen.add(name)
    return None if seen else "needs a column"
