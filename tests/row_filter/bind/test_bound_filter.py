"""What a bound filter holds, and how a refusal is shown."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from pgsluice.row_filter import FilterColumn, FilterNotExact, bind_row_filter, plan_filters
from pgsluice.row_filter import nodes as n
from pgsluice.sql import SqlRefused

INT4, TEXT, DATE, VARCHAR = 23, 25, 1082, 1043
COLUMNS = [
    FilterColumn("a", INT4),
    FilterColumn("c", TEXT),
    FilterColumn("d", DATE),
    FilterColumn("v", VARCHAR, 14),
]


def refusal(text: str, **options: object) -> SqlRefused:
    with pytest.raises(SqlRefused) as caught:
        bind_row_filter(text, COLUMNS, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_bound_filter_has_its_types_and_columns() -> None:
    bound = bind_row_filter("a > 5 AND c = 'NSW'", COLUMNS)
    assert bound.sql == "((a > 5) AND (c = 'NSW'::text))"
    assert bound.columns == {"a", "c"}
    assert isinstance(bound.expression, n.Bool)
    more, equal = bound.expression.arguments
    assert isinstance(more, n.OperatorCall)
    assert more.operator.function.signature == "int4gt(int4,int4)"
    assert more.arguments == (n.Column("a", INT4), n.Const("5", INT4))
    assert isinstance(equal, n.OperatorCall)
    assert equal.input_collation == 100
    assert equal.arguments[1] == n.Const("NSW", TEXT, collation=100)


def test_a_printed_filter_reads_back_as_itself() -> None:
    for text in ("v = 'x' OR NOT a IN (1, 2)", "CASE a WHEN 1 THEN true END", "d - 1 > '2024-1-2'"):
        once = bind_row_filter(text, COLUMNS).sql
        assert bind_row_filter(once, COLUMNS).sql == once


def test_a_refusal_shows_as_in_psql() -> None:
    assert str(refusal("a > 5\nAND nope = 1")) == (
        'ERROR:  column "nope" does not exist\nLINE 2: AND nope = 1\n            ^'
    )
    assert str(refusal("a = c")) == (
        "ERROR:  operator does not exist: integer = text\nLINE 1: a = c\n          ^\n"
        "HINT:  No operator matches the given name and argument types."
        " You might need to add explicit type casts."
    )


def test_an_error_can_be_located_in_the_whole_statement() -> None:
    statement = "CREATE PUBLICATION p FOR TABLE t WHERE (now() IS NULL)"
    error = refusal("now() IS NULL").located_in(statement, statement.index("now"))
    assert error.source == statement
    assert statement[error.position or 0 :] == "now() IS NULL)"


def test_a_filter_that_only_pgsluice_refuses_has_a_reason_and_a_hint() -> None:
    error = refusal("d = 'today'")
    assert isinstance(error, FilterNotExact)
    assert "DETAIL:" in str(error)
    assert "HINT:  Write it as an ISO 8601 constant" in str(error)


def test_an_error_of_postgresql_comes_before_one_of_pgsluice() -> None:
    error = refusal("d = 'today' AND now() IS NULL")
    assert not isinstance(error, FilterNotExact)
    assert error.detail == "User-defined or built-in mutable functions are not allowed."


def test_refusals_pickle() -> None:
    for text in ("nope = 1", "d = 'today'"):
        error = refusal(text)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_filter_nested_too_deeply_is_refused() -> None:
    assert "nested this deeply" in str(refusal("(" * 5_000 + "a" + ")" * 5_000))


DEEP = {
    "parentheses": lambda n: "(" * n + "a = 1" + ")" * n,
    "not": lambda n: "NOT " * n + "a = 1",
    "calls": lambda n: "abs(" * n + "a" + ")" * n + " = 1",
    "case": lambda n: "CASE WHEN a = 1 THEN " * n + "true" + " ELSE false END" * n,
    "and": lambda n: " AND ".join(["a = 1"] * n),
    "sum": lambda n: " + ".join(["a"] * n) + " = 1",
    "array": lambda n: "ARRAY" + "[" * n + "1" + "]" * n + " IS NULL",
    "array constant": lambda n: "'" + "{" * n + "1" + "}" * n + "'::int[] IS NULL",
    "jsonb": lambda n: "'" + "[" * n + "1" + "]" * n + "'::jsonb IS NULL",
    "path": lambda n: "'$" + ".a" * n + "'::jsonpath IS NULL",
    "comments": lambda n: "/*" * n + "*/" * n + "a = 1",
    "digits": lambda n: "a = " + "9" * n,
    "digits in quotes": lambda n: "'" + "9" * n + "'::numeric > a",
    "hexadecimal digits": lambda n: "a < 0x" + "f" * n,
}


@pytest.mark.parametrize("count", [90, 150, 900, 3000])
@pytest.mark.parametrize("form", DEEP)
def test_deep_filters_and_long_numbers_are_computed_or_refused(form: str, count: int) -> None:
    text = DEEP[form](count)
    try:
        bound = bind_row_filter(text, [FilterColumn("a", INT4)])
    except SqlRefused as refused:
        message = refused.message
    else:
        evaluator = pickle.loads(pickle.dumps(plan_filters([bound])))
        assert len(evaluator.evaluate({"a": pa.array([1])}, 1)) == 1
        return
    assert any(reason in message for reason in ("nested", "out of range", "exceeds", "jsonpath"))
