"""Plan a bound expression.

Rules of evaluation, from execExprInterp.c: all arguments of a function are computed, and a strict
function with a NULL among them is not called. AND stops at the first false, OR at the first true.
CASE and COALESCE compute no more than they need. A row comparison stops at the first field that
differs or is NULL.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import pyarrow.compute as pc

from pgsluice.definitions.text_rules import ANY_LOCALE, TextRules
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.catalog import BOOL, INT4, INTERVAL, OID, TIMESTAMP, builtins
from pgsluice.row_filter.kernels import KERNELS
from pgsluice.row_filter.kernels.comparison import order_key
from pgsluice.row_filter.kernels.kernel import Compute, Kernel, KnownResult, Refused, Site
from pgsluice.row_filter.plan.choices import (
    case,
    coalesce,
    is_in_column,
    membership,
    min_max,
    nested_array,
    null_if,
    pair_keys,
    row_comparison,
)
from pgsluice.row_filter.plan.connectives import connective, truth_test, with_fallback
from pgsluice.row_filter.plan.plans import (
    Computed,
    Constant,
    Plan,
    Run,
    Tuple,
    applied,
    call_column,
    folded,
    on_column,
)
from pgsluice.row_filter.tree import columns_of, functions_called, type_of, walk
from pgsluice.row_filter.values import ELEMENTS, NAMES, VALUE_TYPES, CannotKnow, NotReadable, Value
from pgsluice.row_filter.values.collections import PgArray

_OIDS = frozenset({OID, 28})  # and xid
#: Types whose values are the same here, so a cast between them changes nothing.
_ALIKE = (
    frozenset({"text", "varchar", "bpchar", "xml"}),
    frozenset({"_text", "_varchar", "_bpchar"}),
    frozenset({"inet", "cidr"}),
    frozenset({"bit", "varbit"}),
)
_OVERLAPS = n.Function(2041, "overlaps(timestamp,timestamp,timestamp,timestamp)")
_PLUS_INTERVAL = n.Function(2032, "timestamp_pl_interval(timestamp,interval)")
_MOST_CALLS = 10


class Planner:
    """Plans one expression.

    Attributes:
        columns: the types of the columns that the plan reads, by name, in the order of a row's
            tuple.
    """

    def __init__(self, text_rules: TextRules = ANY_LOCALE) -> None:
        self.columns: dict[str, int] = {}
        self._case_arguments: list[Plan] = []
        self._text_rules = text_rules

    def plan(self, node: n.Node) -> Plan:
        """Plan a node.

        Raises:
            Refused: the node, or one below it, cannot be computed exactly.
            SqlError: a constant part fails.
        """
        try:
            plan = self._plan(node)
            return self._test(node, plan) if type_of(node) == BOOL else plan
        except Refused as refused:
            refused.node = refused.node or node
            raise
        except CannotKnow as error:
            raise Refused(error.message, node=node) from None

    def _test(self, node: n.Node, plan: Plan) -> Plan:
        """Plan a boolean node: parts that Arrow cannot compute are computed once for each distinct
        value."""
        if isinstance(plan, Constant) or isinstance(node, n.Column | n.Bool | n.Relabel):
            return plan
        if self._case_arguments:
            return plan
        columns = columns_of(node)
        if len(columns) != 1:
            return with_fallback(plan, None) if plan.column is not None else plan
        (name,) = columns
        return with_fallback(plan, (name, list(self.columns).index(name)))

    def _plan(self, node: n.Node) -> Plan:
        match node:
            case n.Const():
                return _constant(node)
            case n.Column():
                return self._column(node)
            case n.FunctionCall():
                return self._call(node.function, node.arguments, node)
            case n.OperatorCall():
                return self._call(node.operator.function, node.arguments, node)
            case n.Bool():
                return self._bool(node)
            case n.NullTest():
                return self._null_test(node)
            case n.BooleanTest():
                return truth_test(self.plan(node.argument), n.TRUTHS[node.word], node.is_negated)
            case n.Relabel():
                return self._relabel(node)
            case n.Collate():
                return self.plan(node.argument)
            case n.CaseArgument():
                return self._case_arguments[-1]
            case n.Case():
                return self._case(node)
            case n.Coalesce():
                return coalesce(map(self.plan, node.arguments))
            case n.DistinctFrom():
                return self._distinct(node)
            case n.NullIf():
                return self._null_if(node)
            case n.ScalarArray():
                return self._scalar_array(node)
            case n.RowCompare():
                return self._row_compare(node)
            case n.MinMax():
                return self._min_max(node)
            case n.Array():
                return self._array(node)
            case n.Row():
                raise Refused("a row as a value cannot be computed here")
        raise Refused("this cast is not one that a row filter can have")

    def _site(
        self,
        types: tuple[int, ...],
        collation: int,
        plans: Sequence[Plan] = (),
        result_type: int = BOOL,
    ) -> Site:
        """A call's site; without ``plans``, of arguments of which none is constant."""
        constants = tuple(plan.value if isinstance(plan, Constant) else ... for plan in plans)
        constants = constants or (...,) * len(types)
        return Site(types, constants, result_type, collation, self._text_rules)

    # Leaves

    def _column(self, node: n.Column) -> Plan:
        name = node.name
        self.columns.setdefault(name, node.type_oid)
        index = list(self.columns).index(name)
        return Computed(lambda row: row[index], lambda batch: batch.array(name), is_safe=True)

    def _relabel(self, node: n.Relabel) -> Plan:
        plan = self.plan(node.argument)
        source, target = type_of(node.argument), node.type_oid
        if _is_alike(source, target):
            if isinstance(plan, Computed) and NAMES.get(target) == "bpchar":
                return Computed(plan.run)
            return plan
        if source not in VALUE_TYPES or target not in VALUE_TYPES:
            raise Refused("values of the one type cannot be read as the other here")
        return _relabelled(plan, source, target)

    # Calls

    def _call(
        self,
        function: n.Function,
        arguments: Sequence[n.Node],
        node: n.FunctionCall | n.OperatorCall,
    ) -> Plan:
        function, arguments = _inlined(function, arguments)
        plans = [self.plan(argument) for argument in arguments]
        types = tuple(map(type_of, arguments))
        site = self._site(types, node.input_collation, plans, node.type_oid)
        kernel = _kernel(function)
        has_null = any(
            isinstance(argument, Constant) and argument.value is None for argument in plans
        )
        if kernel.is_strict and has_null:
            return Constant(None)
        try:
            compute = kernel.make(site)
        except KnownResult as known:
            return Constant(known.value)
        if kernel.is_reversed:  # the server replaces f(a, b) by the function's body, b + a
            plans.reverse()
        if kernel.is_strict:
            called = applied(compute, plans, *call_column(function.signature, site, plans, types))
        else:
            runs = [argument.run for argument in plans]
            called = folded(lambda row: compute(*[argument(row) for argument in runs]), plans)
        # a cast's function may give another type than the cast, of which the bits are the same
        declared = builtins().functions.get(function.oid)
        return called if declared is None else _relabelled(called, declared.result, node.type_oid)

    def _operator(self, operator: n.Operator, types: tuple[int, ...], collation: int) -> Compute:
        return _kernel(operator.function).make(self._site(types, collation))

    def _distinct(self, node: n.DistinctFrom) -> Plan:
        plans = [self.plan(argument) for argument in node.arguments]
        types = tuple(map(type_of, node.arguments))
        equal = self._operator(node.operator, types, node.input_collation)
        left, right = [plan.run for plan in plans]

        def run(row: Tuple) -> Value:
            a, b = left(row), right(row)
            if a is None or b is None:
                return a is not b
            return not equal(a, b)

        return folded(run, plans)

    def _null_if(self, node: n.NullIf) -> Plan:
        plans = [self.plan(argument) for argument in node.arguments]
        types = tuple(map(type_of, node.arguments))
        return null_if(self._operator(node.operator, types, node.input_collation), plans)

    def _scalar_array(self, node: n.ScalarArray) -> Plan:
        scalar, array = self.plan(node.scalar), self.plan(node.array)
        types = type_of(node.scalar), ELEMENTS.get(type_of(node.array), 0)
        if not types[1]:
            raise Refused("arrays of this type cannot be read here")
        compute = self._operator(node.operator, types, node.input_collation)
        run = membership(compute, scalar.run, array.run, node.is_any)
        column = is_in_column(node.operator.function.signature, scalar, array, types, node.is_any)
        return folded(run, [scalar, array], column)

    def _row_compare(self, node: n.RowCompare) -> Plan:
        left = [self.plan(left_field).run for left_field in node.left]
        right = [self.plan(left_field).run for left_field in node.right]
        keys = [
            pair_keys(self._site((type_of(left_field), type_of(right_field)), collation))
            for left_field, right_field, collation in zip(
                node.left, node.right, node.input_collations, strict=True
            )
        ]
        pairs = [(a, b, *pair) for a, b, pair in zip(left, right, keys, strict=True)]
        return Computed(row_comparison(node.comparison, pairs))

    def _min_max(self, node: n.MinMax) -> Plan:
        plans = [self.plan(argument) for argument in node.arguments]
        site = self._site((node.type_oid,), node.input_collation)
        return min_max(order_key(node.type_oid, site), plans, is_greatest=node.is_greatest)

    def _array(self, node: n.Array) -> Plan:
        plans = [self.plan(element) for element in node.elements]
        runs = [element.run for element in plans]
        if node.is_nested:
            return folded(lambda row: nested_array([element(row) for element in runs]), plans)
        return folded(lambda row: PgArray.of(tuple([element(row) for element in runs])), plans)

    # Booleans and choices

    def _bool(self, node: n.Bool) -> Plan:
        if node.connective is n.Connective.NOT:
            plan = self.plan(node.arguments[0])
            return applied(operator.not_, [plan], on_column(pc.invert, plan), plan.is_safe)
        return connective(node.connective is n.Connective.AND, map(self.plan, node.arguments))

    def _null_test(self, node: n.NullTest) -> Plan:
        if node.is_row:
            if not isinstance(node.argument, n.Row):
                raise Refused("a column of a composite type cannot be read here")
            # constant fields are computed first; then the fields are tests under AND
            plans = [self.plan(field) for field in node.argument.fields]
            return connective(True, [_null_test(field, node.is_null) for field in plans])
        return _null_test(self.plan(node.argument), node.is_null)

    def _case(self, node: n.Case) -> Plan:
        argument = None if node.argument is None else self.plan(node.argument)
        if isinstance(argument, Constant):
            self._case_arguments.append(argument)
        else:  # the arms' conditions see the row with the argument's value at its end
            self._case_arguments.append(Computed(lambda row: row[-1]))
        try:
            arms, default = self._arms(node)
        finally:
            self._case_arguments.pop()
        return case(argument, arms, default)

    def _arms(self, node: n.Case) -> tuple[list[tuple[Run, Run]], Plan]:
        """The arms that can be reached, and the default."""
        arms: list[tuple[Run, Run]] = []
        for arm in node.arms:
            condition = self.plan(arm.condition)
            if isinstance(condition, Constant):
                if condition.value:
                    return arms, self.plan(arm.result)
                continue
            arms.append((condition.run, self.plan(arm.result).run))
        return arms, self.plan(node.default)


def _constant(node: n.Const) -> Constant:
    if node.text is None:
        return Constant(None)
    value_type = VALUE_TYPES.get(node.type_oid)
    if value_type is None:
        raise Refused("constants of this type cannot be read here")
    try:
        return Constant(value_type.parse(node.text))
    except NotReadable:
        raise Refused("the constant is not in the form that PostgreSQL prints") from None


def _inlined(
    function: n.Function, arguments: Sequence[n.Node]
) -> tuple[n.Function, Sequence[n.Node]]:
    """The call that the server makes of an OVERLAPS with intervals: the periods end at start +
    interval. So the first error is that of the first period. The server does not do this if a
    start, which the new call has twice, calls many functions (inline_function() in clauses.c)."""
    if INTERVAL not in map(type_of, arguments) or not function.signature.startswith(
        "overlaps(timestamp,"
    ):
        return function, arguments
    periods = list[n.Node]()
    for start, end in (arguments[:2], arguments[2:]):
        if type_of(end) == INTERVAL:
            if sum(_calls(node) for node in walk(start) if columns_of(node)) > _MOST_CALLS:
                return function, arguments
            end = n.FunctionCall(_PLUS_INTERVAL, (start, end), TIMESTAMP)
        periods += (start, end)
    return _OVERLAPS, periods


def _calls(node: n.Node) -> int:
    return len(functions_called(node)) + isinstance(node, n.MinMax)


def _kernel(function: n.Function) -> Kernel:
    kernel = KERNELS.get(function.signature)
    if kernel is None:
        raise Refused(f"the function {function.signature} cannot be computed here")
    return kernel


def _relabelled(plan: Plan, source: int, target: int) -> Plan:
    """The values of one type reinterpreted as another type with the same bits."""
    if source == INT4 and target in _OIDS:
        return applied(lambda number: number % 2**32, [plan])
    if source in _OIDS and target == INT4:
        return applied(lambda oid: oid - 2**32 if oid >= 2**31 else oid, [plan])
    return plan


def _is_alike(source: int, target: int) -> bool:
    names = {NAMES.get(source), NAMES.get(target)}
    return any(names <= group for group in _ALIKE)


def _null_test(plan: Plan, is_null: bool) -> Plan:
    compute = plan.run
    column = on_column(pc.is_null if is_null else pc.is_valid, plan)
    return folded(lambda row: (compute(row) is None) == is_null, [plan], column, plan.is_safe)
