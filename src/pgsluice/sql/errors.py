"""Why SQL text is refused, shown as psql shows the server's errors::

ERROR:  relation "nothing" does not exist

ERROR:  syntax error at or near "FRO"
LINE 1: CREATE PUBLICATION p FRO TABLE t
                             ^
"""

from __future__ import annotations

from typing import Any, Self

from pgsluice.errors import ConfigError


class SqlRefused(ConfigError):
    """A statement, or a filter in it, that PostgreSQL 18 refuses with this message.

    Attributes:
        detail: its DETAIL, or None.
        server_hint: its HINT, or None.
        position: in ``source``, in characters from 0; None where the server reports none.
        source: the text that contains the position.
    """

    def __init__(
        self,
        message: str,
        position: int | None = None,
        *,
        detail: str | None = None,
        server_hint: str | None = None,
        source: str | None = None,
        **facts: Any,
    ) -> None:
        facts |= {"detail": detail, "server_hint": server_hint}
        super().__init__(message, position=position, source=source, **facts)

    @property
    def message(self) -> str:
        return self.what

    def located_in(self, source: str | None, shift: int = 0) -> Self:
        """The same error with the text that contains its position."""
        position = None if self.position is None else self.position + shift
        facts = {**self.facts, "position": position, "source": source}
        return type(self)(self.message, **facts)

    def __str__(self) -> str:
        lines = [f"ERROR:  {self.message}"]
        if self.source is not None and self.position is not None:
            lines += _excerpt(self.source, self.position)
        if self.detail:
            lines.append(f"DETAIL:  {self.detail}")
        if self.server_hint:
            lines.append(f"HINT:  {self.server_hint}")
        return "\n".join(lines)


def _excerpt(source: str, position: int) -> list[str]:
    """The line of the position, and a caret below it."""
    before = source[:position]
    start = before.rfind("\n") + 1
    line = source[start:].partition("\n")[0].rstrip("\r").replace("\t", " ")
    label = f"LINE {before.count(chr(10)) + 1}: "
    return [label + line, " " * (len(label) + position - start) + "^"]
