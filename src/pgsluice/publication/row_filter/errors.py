"""Why a filter is refused: in PostgreSQL's words, or because only we cannot do it exactly.

Both show themselves as psql shows the server's errors::

    ERROR:  column "x" does not exist
    LINE 1: a > 5 AND x = 1
                      ^
"""

from __future__ import annotations

from typing import Any

from pgsluice.errors import ConfigError, PgsluiceError


class RowFilterError(ConfigError):
    """PostgreSQL refuses this filter, with these words.

    Attributes:
        message: the server's message.
        detail: its DETAIL, or None.
        server_hint: its HINT, or None.
        position: where in ``source``, from 0; None where the server names no place.
        source: the text that ``position`` counts in.
    """

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        server_hint: str | None = None,
        position: int | None = None,
        source: str | None = None,
        **facts: Any,
    ) -> None:
        facts.pop("hint", None)
        super().__init__(
            message, detail=detail, server_hint=server_hint, position=position, source=source,
            **facts,
        )  # fmt: skip

    @property
    def message(self) -> str:
        return self.what

    def located_in(self, source: str, offset: int) -> RowFilterError:
        """The same error, its position counted in the statement that holds the filter."""
        position = None if self.position is None else self.position + offset
        facts = {**self.facts, "position": position, "source": source}
        return type(self)(self.message, **facts)

    def __str__(self) -> str:
        lines = [f"ERROR:  {self.message}"]
        if self.source is not None and self.position is not None:
            lines += _place(self.source, self.position)
        if self.detail:
            lines.append(f"DETAIL:  {self.detail}")
        if self.server_hint:
            lines.append(f"HINT:  {self.server_hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.facts)


class FilterNotExact(RowFilterError):
    """PostgreSQL accepts this filter; we cannot do exactly what it does, so we refuse.

    ``detail`` is the reason, ``server_hint`` the way out.
    """


def _rebuild(kind: type[RowFilterError], message: str, facts: dict[str, Any]) -> PgsluiceError:
    return kind(message, **facts)


def _place(source: str, position: int) -> list[str]:
    """The line that holds the position, and a caret below it."""
    before = source[:position]
    start = before.rfind("\n") + 1
    end = source.find("\n", position)
    line = source[start:] if end < 0 else source[start:end]
    label = f"LINE {before.count(chr(10)) + 1}: "
    shown = line.replace("\t", " ").rstrip("\r")
    return [label + shown, " " * (len(label) + position - start) + "^"]
