"""What people have written about a table and its columns (COMMENT ON)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableComments:
    """The comments of a table.

    Attributes:
        table: the comment of the table itself; empty: it has none.
        columns: the comments of its columns, by name; a column without a comment has no entry.
    """

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def over(self, others: TableComments, names: Collection[str]) -> TableComments:
        """These, and where there is none, what others say.

        Args:
            names: the names of the columns to keep.
        """
        columns = {**others.columns, **self.columns}
        known = {name: text for name, text in columns.items() if name in names}
        return TableComments(self.table or others.table, known)

    def __bool__(self) -> bool:
        return bool(self.table or self.columns)
