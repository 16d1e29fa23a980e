"""Errors of literals: their type refuses the text, or only pgsluice cannot read it exactly."""

from __future__ import annotations

from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.sql import SqlRefused


class BadLiteral(Exception):
    """The type's input refuses the text, or (``is_ours``) only pgsluice cannot read it exactly."""

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        is_ours: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.is_ours = is_ours

    def refusal(self, location: int | None) -> SqlRefused:
        """The error of the filter that holds the literal."""
        kind = FilterNotExact if self.is_ours else SqlRefused
        return kind(self.message, detail=self.detail, server_hint=self.hint, position=location)


_SERVER = "Let the server's own publication (PostgreSQL 15 or newer) do this filter."


def not_exact(what: str, reason: str, hint: str = _SERVER) -> BadLiteral:
    return BadLiteral(
        f"{what}: PostgreSQL may accept this, pgsluice does not", detail=reason, hint=hint,
        is_ours=True,
    )  # fmt: skip


def invalid(type_name: str, text: str) -> BadLiteral:
    return BadLiteral(f'invalid input syntax for type {type_name}: "{text}"')
