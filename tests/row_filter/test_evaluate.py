"""Row filters compute what the server computes: values, truth, errors, and the row of an error.

The server is the oracle: ``SELECT filter FROM table`` beside ours, over random expressions that
use every supported function. `make soak AREA=filters` runs many more.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from tests.support.filter_cases import OIDS, CaseMaker, Expression, FilterCatalog, make_table
from tests.support.filter_oracle import Oracle, Outcome, Verdict, compare_truth, compare_values

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import EvaluationError
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.evaluate import plan_expression
from pgsluice.row_filter.kernels import KERNELS
from pgsluice.row_filter.kernels.kernel import Refused

ROWS = 40
SEED = 20240229
FILTERS = 1500
TRIES = 30
_C, _DEFAULT = 950, 100


@pytest.fixture(scope="module")
def connection(pg18: EmbeddedServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(pg18.dsn(), autocommit=True) as connection:
        connection.execute("SET timezone = UTC")
        yield connection


@pytest.fixture(scope="module")
def columns(connection: psycopg.Connection) -> dict[str, str]:
    return make_table(connection, "every_type", ROWS, SEED)


@pytest.fixture(scope="module")
def oracle(connection: psycopg.Connection, columns: dict[str, str]) -> Oracle:
    return Oracle(connection, "every_type", columns)


@pytest.fixture(scope="module")
def catalog(connection: psycopg.Connection) -> FilterCatalog:
    return FilterCatalog.read(connection)


# Compared with the server


def test_every_kernel_is_an_immutable_function_of_the_server(
    connection: psycopg.Connection, catalog: FilterCatalog
) -> None:
    assert set(catalog.signatures) == set(KERNELS)
    strict = {
        oid for (oid,) in connection.execute("SELECT oid::int8 FROM pg_proc WHERE proisstrict")
    }
    for signature in catalog.signatures.values():
        text = signature.function.signature
        assert KERNELS[text].is_strict == (signature.function.oid in strict), text


def test_every_function_gives_the_servers_values(
    oracle: Oracle, catalog: FilterCatalog, columns: dict[str, str]
) -> None:
    maker = CaseMaker(catalog, columns, SEED)
    for signature in sorted(catalog.signatures):
        # One comparison is needed; a refused pattern or unit is drawn again.
        for _ in range(TRIES):
            outcome = compare_values(oracle, maker.calling(signature))
            assert outcome.verdict is not Verdict.DIFFERENT, str(outcome)
            if outcome.verdict is Verdict.SAME:
                break
        else:
            pytest.fail(f"{signature} was never compared")


def test_random_filters_are_true_for_the_servers_rows(
    oracle: Oracle, catalog: FilterCatalog, columns: dict[str, str]
) -> None:
    maker = CaseMaker(catalog, columns, SEED)
    outcomes = [
        compare_truth(oracle, maker.boolean(), typed=number % 2 == 0) for number in range(FILTERS)
    ]
    assert_same(outcomes)


def test_whole_columns_of_typed_values_give_what_the_server_does(
    connection: psycopg.Connection, catalog: FilterCatalog
) -> None:
    columns = make_table(connection, "tame", ROWS, SEED, tame=True)
    maker = CaseMaker(catalog, columns, SEED)
    tests = [
        expression for expression in catalog.signatures.values() if expression.result == "bool"
    ]
    expressions = [maker.calling(expression.function.signature) for expression in tests]
    expressions += [maker.boolean(depth=2) for _ in range(FILTERS // 5)]
    oracle = Oracle(connection, "tame", columns)
    assert_same([compare_truth(oracle, expression, typed=True) for expression in expressions])


def assert_same(outcomes: list[Outcome]) -> None:
    """No outcome differs, and nearly all expressions were compared."""
    different = [str(outcome) for outcome in outcomes if outcome.verdict is Verdict.DIFFERENT]
    assert not different, f"{len(different)} of {len(outcomes)}:\n" + "\n".join(different[:5])
    same = sum(outcome.verdict is Verdict.SAME for outcome in outcomes)
    assert same > 0.9 * len(outcomes)


# Examples by hand


def function(signature: str) -> n.Function:
    return n.Function(0, signature)


def call(signature: str, *arguments: n.Node, result: str = "bool", collation: int = _C) -> n.Node:
    return n.FunctionCall(function(signature), arguments, OIDS[result], input_collation=collation)


def column(name: str, type_name: str) -> n.Column:
    return n.Column(name, OIDS[type_name])


def const(text: str | None, type_name: str) -> n.Const:
    return n.Const(text, OIDS[type_name])


N, ONE = column("n", "int4"), const("1", "int4")
DIVIDES = call("int4eq(int4,int4)", call("int4div(int4,int4)", ONE, N, result="int4"), ONE)
IS_ZERO = call("int4eq(int4,int4)", N, const("0", "int4"))
FAILS = call(
    "int4eq(int4,int4)", call("int4div(int4,int4)", ONE, const("0", "int4"), result="int4"), ONE
)


def both(*arguments: n.Node) -> n.Node:
    return n.Bool(n.Connective.AND, arguments)


def either(*arguments: n.Node) -> n.Node:
    return n.Bool(n.Connective.OR, arguments)


def evaluate(expression: n.Node, **columns: list[object]) -> list[bool | None]:
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return plan_expression(expression).evaluate(arrays).to_pylist()


@pytest.mark.parametrize("numbers", [["0", "1", None], [0, 1, None]], ids=["text", "typed"])
def test_text_output_and_typed_columns_are_the_same(numbers: list[object]) -> None:
    assert evaluate(IS_ZERO, n=numbers) == [True, False, None]


def test_an_error_names_the_first_row_and_the_servers_message() -> None:
    with pytest.raises(EvaluationError, match="division by zero") as caught:
        evaluate(DIVIDES, n=[1, None, 0, 0])
    assert (caught.value.row, caught.value.condition) == (2, "division_by_zero")
    assert caught.value.message == "division by zero"
    assert pickle.loads(pickle.dumps(caught.value)).row == 2


def test_rows_and_branches_that_the_server_does_not_look_at_do_not_fail() -> None:
    assert evaluate(either(IS_ZERO, DIVIDES), n=[0, 1, 2, None]) == [True, True, False, None]
    guarded = n.Case(None, (n.When(IS_ZERO, const("f", "bool")),), DIVIDES, OIDS["bool"])
    assert evaluate(guarded, n=[0, 1]) == [False, True]


def test_and_goes_on_after_null_and_stops_at_false() -> None:
    unknown = n.Bool(n.Connective.AND, (column("b", "bool"), DIVIDES))
    assert evaluate(unknown, b=[False, True, None], n=[0, 1, 1]) == [False, True, None]
    with pytest.raises(EvaluationError, match="division by zero"):
        evaluate(unknown, b=[None], n=[0])


def test_constants_fail_before_the_first_row_unless_they_cannot_be_reached() -> None:
    with pytest.raises(EvaluationError, match="division by zero") as caught:
        evaluate(either(IS_ZERO, FAILS), n=[0])
    assert caught.value.row == 0
    assert evaluate(either(IS_ZERO, FAILS), n=[]) == []
    assert evaluate(both(const("f", "bool"), FAILS, IS_ZERO), n=[0]) == [False]


def test_an_evaluator_pickles() -> None:
    copy = pickle.loads(pickle.dumps(plan_expression(both(IS_ZERO, DIVIDES))))
    assert copy.evaluate({"n": pa.array([1], pa.int32())}).to_pylist() == [False]


def test_a_filter_without_columns_needs_the_number_of_rows() -> None:
    assert plan_expression(const("t", "bool")).evaluate({}, rows=2).to_pylist() == [True, True]


def lower(collation: int) -> n.Node:
    lowered = call("lower(text)", column("t", "text"), result="text", collation=collation)
    return call("texteq(text,text)", lowered, const("é", "text"), collation=collation)


def test_the_case_of_letters_that_only_the_locale_knows_is_not_guessed() -> None:
    assert evaluate(lower(_C), t=["É", "é", "E"]) == [False, True, False]
    with pytest.raises(EvaluationError, match="locale") as caught:
        evaluate(lower(_DEFAULT), t=["E", "É"])
    assert (caught.value.condition, caught.value.row) == ("cannot_know", 1)
    assert "É" not in str(caught.value)


REFUSED = {
    "an order of text that only the server has": (
        call("text_lt(text,text)", column("t", "text"), const("m", "text"), collation=_DEFAULT),
        'COLLATE "C"',
    ),
    "a regular expression of the row's": (
        call("textregexeq(text,text)", column("t", "text"), column("p", "text")),
        "publication of the server",
    ),
    "a back reference": (
        call("textregexeq(text,text)", column("t", "text"), const(r"(a)\1", "text")),
        "publication of the server",
    ),
    "a function without a kernel": (
        call("dexp(float8)", column("f", "float8"), result="float8"),
        "publication of the server",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_expression_that_cannot_be_exact_is_refused_with_a_way_out(case: str) -> None:
    node, way_out = REFUSED[case]
    with pytest.raises(Refused) as refused:
        plan_expression(both(IS_ZERO, node))
    assert refused.value.node == node
    assert way_out in refused.value.way_out


def test_an_error_does_not_show_values(oracle: Oracle) -> None:
    expression = Expression("1e400::numeric::float4 = 1", call(
        "float4eq(float4,float4)",
        call("float4(numeric)", const("1" + "0" * 400, "numeric"), result="float4"),
        const("1", "float4"),
    ))  # fmt: skip
    with pytest.raises(EvaluationError, match='"…" is out of range for type real'):
        plan_expression(expression.node).evaluate({}, rows=1)
