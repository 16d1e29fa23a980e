"""tsvector and tsquery.

Source: src/backend/utils/adt/tsvector.c (``tsvectorout``), tsquery.c (``infix``).
"""

from __future__ import annotations

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen

_WEIGHTS = ("", "C", "B", "A")
"""The weight of a tsvector's position by its two upper bits; D is not printed."""
_VALUE, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}


def print_tsvector(value: bytes) -> str:
    """Text of a tsvector, as tsvectorout prints it: ``'lexeme':1A,2 'other'``."""
    cursor = Cursor(value)
    lexemes = [_print_lexeme(cursor) for _ in range(cursor.number(4))]
    cursor.close()
    return " ".join(lexemes)


def _print_lexeme(cursor: Cursor) -> str:
    text = _quoted(cursor.string())
    positions = [cursor.unsigned(2) for _ in range(cursor.unsigned(2))]
    if not positions:
        return text
    places = (f"{position & 0x3FFF}{_WEIGHTS[position >> 14]}" for position in positions)
    return f"{text}:{','.join(places)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def print_tsquery(value: bytes) -> str:
    """tsqueryout: prints the tree, which the binary form has in prefix order, with parentheses."""
    cursor = Cursor(value)
    if cursor.number(4) == 0:
        cursor.close()
        return ""
    text = _print_node(cursor, 0, is_right_of_phrase=False)
    cursor.close()
    return text


def _print_node(cursor: Cursor, outer: int, *, is_right_of_phrase: bool) -> str:
    """Print the operand at the cursor, or the operator with its operands.

    Args:
        outer: the priority of the parent operator; 0 at the root.
        is_right_of_phrase: the node is the right operand of a phrase operator.
    """
    kind = cursor.unsigned(1)
    if kind == _VALUE:
        return _print_operand(cursor)
    operator = cursor.unsigned(1)
    if kind != _OPERATOR or operator not in _PRIORITY:
        raise Misshapen
    priority = _PRIORITY[operator]
    is_enclosed = priority < outer or (operator == _PHRASE and is_right_of_phrase)
    if operator == _NOT:
        text = "!" + _print_node(cursor, priority, is_right_of_phrase=False)
    else:
        sign = _print_operator(cursor, operator)
        right = _print_node(cursor, priority, is_right_of_phrase=operator == _PHRASE)
        left = _print_node(cursor, priority, is_right_of_phrase=False)
        text = f"{left} {sign} {right}"
    return f"( {text} )" if is_enclosed else text


def _print_operator(cursor: Cursor, operator: int) -> str:
    if operator == _PHRASE:
        distance = cursor.unsigned(2)
        return "<->" if distance == 1 else f"<{distance}>"
    return "&" if operator == _AND else "|"


def _print_operand(cursor: Cursor) -> str:
    weight, is_prefix = cursor.unsigned(1), cursor.unsigned(1)
    text = _quoted(cursor.string())
    flags = "*" if is_prefix else ""
    flags += "".join(
        letter for bit, letter in ((8, "A"), (4, "B"), (2, "C"), (1, "D")) if weight & bit
    )
    return f"{text}:{flags}" if flags else text
