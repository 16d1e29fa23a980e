"""A server as the oracle of row filters: its answer beside ours, errors included."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq
from tests.support.filter_cases import Expression

from pgsluice.errors import EvaluationError
from pgsluice.row_filter import FilterEvaluator
from pgsluice.row_filter.evaluate import plan_expression
from pgsluice.row_filter.kernels.kernel import Refused
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.plan.planner import Planner, type_of
from pgsluice.row_filter.values import VALUE_TYPES, SqlError
from pgsluice.row_filter.values.jsonb import Jsonb, format_jsonb
from pgsluice.types import resolve_type

_UNKNOWN = "cannot_know"
_SETTINGS = (
    "datestyle = ISO",
    "intervalstyle = postgres",
    "extra_float_digits = 3",
    "timezone = UTC",
    "client_encoding = UTF8",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An expression's values for the rows before the first that fails.

    Attributes:
        values: one for each row; texts of the server, values of ours.
        error: the message of the next row; None when none failed.
        is_unknown: the error says that only the server can know the answer.
    """

    values: tuple[Any, ...]
    error: str | None = None
    is_unknown: bool = False


class Oracle:
    """One table on a server, and the same rows as Arrow columns."""

    def __init__(
        self, connection: psycopg.Connection[Any], table: str, columns: Iterable[str]
    ) -> None:
        for setting in _SETTINGS:
            connection.execute(f"SET {setting}")
        self._pg = connection.pgconn
        self._table = table
        self._typmods = dict(
            connection.execute(
                "SELECT attname, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass", [table]
            ).fetchall()
        )
        self.texts = {name: self._column(name) for name in columns}
        self.rows = len(next(iter(self.texts.values())))

    def _column(self, name: str) -> pa.Array:
        return pa.array(self._select(name), pa.large_string())

    def _select(self, expression: str, rows: int | None = None) -> list[str | None]:
        """An expression's values for the table's first rows, or all; raises ServerError."""
        # Rows are computed in the order of the sub-select, whatever the table's own order is.
        limit = "ALL" if rows is None else rows
        ordered = f"(SELECT * FROM {self._table} ORDER BY id LIMIT {limit} OFFSET 0) AS ordered"
        query = f"SELECT {expression} FROM {ordered}"
        result = self._pg.exec_(query.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            raise ServerError((message or b"").decode())
        raw = (result.get_value(row, 0) for row in range(result.ntuples))
        return [None if one is None else one.decode() for one in raw]

    def server(self, expression: str, failing_row: int | None) -> Answer:
        """The server's answer; if it fails, for the rows before ``failing_row``."""
        try:
            return Answer(tuple(self._select(expression)))
        except ServerError as error:
            values: Sequence[str | None] = ()
            if failing_row:
                with suppress(ServerError):  # it failed for an earlier row: there are no values
                    values = self._select(expression, failing_row)
            return Answer(tuple(values), str(error))

    def typed(self, types: dict[str, int]) -> dict[str, pa.Array]:
        """Columns as pgsluice.types decodes them, where all values fit."""
        made = {}
        for name, oid in types.items():
            text = self.texts[name]
            decoded = resolve_type(oid, self._typmods[name], {}).decode_text(
                text.cast(pa.large_binary())
            )
            fits = decoded.unfit is None and not pa.types.is_nested(decoded.values.type)
            made[name] = decoded.values if fits else text
        return made

    def truth(self, evaluator: FilterEvaluator, typed: bool) -> Answer:
        """Our answer for a filter, as the server would print it."""
        columns = self.typed(dict(evaluator.columns)) if typed else self.texts
        try:
            found = evaluator.evaluate(columns, self.rows)
        except EvaluationError as error:
            before = {name: one.slice(0, error.row) for name, one in columns.items()}
            values = evaluator.evaluate(before, error.row).to_pylist() if error.row else []
            return Answer(
                tuple(map(_print_bool, values)), error.message, error.condition == _UNKNOWN
            )
        return Answer(tuple(map(_print_bool, found.to_pylist())))

    def values(self, expression: Expression) -> Answer:
        """Our values, row by row."""
        planner = Planner()
        values: list[Any] = []
        try:
            run = planner.plan(expression.node).run
            batch = Batch(self.texts, planner.columns)
            batch.rows = self.rows
            for row in batch.tuples():
                values.append(run(row))  # noqa: PERF401 - what came before an error counts
        except SqlError as error:
            return Answer(tuple(values), error.message, error.condition == _UNKNOWN)
        return Answer(tuple(values))


class ServerError(Exception):
    """The server's primary message."""


def _print_bool(truth: bool | None) -> str | None:
    return None if truth is None else "t" if truth else "f"


_DIGIT = re.compile(r'(?<=digit: )".*"', re.DOTALL)


def plain(message: str | None) -> str | None:
    """A message without the values that the server shows."""
    if message is None:
        return None
    return re.sub(r'"[^"]*" (is out|must )', r'"…" \1', _DIGIT.sub('"…"', message))


def same_value(expression: Expression, text: str | None, value: Any) -> bool:
    """Whether a value of ours is what the server printed."""
    if text is None or value is None:
        return text is value
    value_type = VALUE_TYPES[type_of(expression.node)]
    return exact(value_type.parse(text)) == exact(value)


def exact(value: Any) -> str:
    """A value with all its details: 1.0 is not 1.00, and NaN is itself."""
    return format_jsonb(value.content) if isinstance(value, Jsonb) else repr(value)


class Verdict(Enum):
    """The outcome of a comparison; of several of one filter, the last one counts."""

    SAME = "the same values, or the same error for the same row"
    REFUSED = "the server takes it, pgsluice refuses it and says so"
    BOTH_REFUSE = "neither takes it"
    CANNOT_KNOW = "the same up to a row of which only the server can know"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on an expression; ``detail`` has the difference, or the reason of a refusal."""

    verdict: Verdict
    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text}\n    {self.detail}"


def compare_values(oracle: Oracle, expression: Expression) -> Outcome:
    """Every value of an expression of any type."""
    try:
        plan_expression(expression.node)
    except Refused:
        return Outcome(Verdict.REFUSED, expression.sql)
    return _compare(
        oracle, expression.sql, oracle.values(expression), partial(same_value, expression)
    )


def compare_truth(oracle: Oracle, expression: Expression, typed: bool) -> Outcome:
    """A filter's truth, from texts or from typed columns."""
    try:
        evaluator = plan_expression(expression.node)
    except Refused:
        return Outcome(Verdict.REFUSED, expression.sql)
    return compare_filter(oracle, expression.sql, evaluator, typed)


def compare_filter(oracle: Oracle, text: str, evaluator: FilterEvaluator, typed: bool) -> Outcome:
    """A planned filter's truth, from texts or from typed columns."""
    return _compare(oracle, text, oracle.truth(evaluator, typed), operator.eq)


def _compare(
    oracle: Oracle, text: str, mine: Answer, is_same: Callable[[Any, Any], bool]
) -> Outcome:
    def different(what: str) -> Outcome:
        return Outcome(Verdict.DIFFERENT, text, what)

    theirs = oracle.server(f"({text})", len(mine.values) if mine.error else None)
    if not mine.is_unknown and mine.error != plain(theirs.error):
        return different(f"server: {theirs.error}; here: {mine}")
    values = theirs.values[: len(mine.values)]
    if len(values) < len(mine.values):
        return different(f"server, for an earlier row: {theirs.error}; here: {mine}")
    for row, (printed, value) in enumerate(zip(values, mine.values, strict=True)):
        if not is_same(printed, value):
            return different(f"row {row}: {printed!r} on the server, {value!r} here")
    verdict = Verdict.CANNOT_KNOW if mine.is_unknown else Verdict.SAME
    return Outcome(verdict, text, mine.error or "")
