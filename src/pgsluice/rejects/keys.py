"""The key of a row as text: a JSON object with each key column's value as PostgreSQL prints it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.columnar.changes import RelationChanges
from pgsluice.errors import TableError
from pgsluice.facts import RelationFacts
from pgsluice.sinks.target import TableOptions, key_columns

_TEXT = pa.large_string()
_ESCAPED = r'["\\\x00-\x1f]'


def key_texts(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    """The key of each of n rows, from the key's columns and their names: large_string, n; null
    where a column is.

    Raises:
        PgsluiceError: a column's type cannot be a key's.
    """
    # It formats values without the decoder, and `verify` finds the rows by it.
    from pgsluice.verification.postgres_text import postgres_text

    parts: list[pa.Array | pa.Scalar] = []
    for number, (values, name) in enumerate(zip(columns, names, strict=True)):
        begin = f"{', ' if number else '{'}{json.dumps(name, ensure_ascii=False)}: "
        parts += [pa.scalar(begin, _TEXT), _quoted(postgres_text(values))]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", _TEXT), pa.scalar("", _TEXT))


def log_key(runs: Sequence[RelationChanges], options: TableOptions) -> tuple[str, ...]:
    """The columns that identify a row of a change log, which needs no key itself; empty: none do,
    or some changes lack them."""
    facts = [run.facts for run in runs]
    if not runs or any(each is None for each in facts):
        return ()
    keys = {table_key(each, options) for each in facts if each is not None}
    key = keys.pop() if len(keys) == 1 else ()
    for run in runs:
        has_old = bool((run.old_index >= 0).any())
        carried = {each.name for each in run.relation.columns if each.is_key or not has_old}
        if not carried.issuperset(key):
            return ()
    return key


def table_key(facts: RelationFacts, options: TableOptions) -> tuple[str, ...]:
    """The columns that identify a table's row in its rejects: its key, or else those of its replica
    identity."""
    try:
        return key_columns(facts, options)
    except TableError:
        return tuple(facts.identity_key)


def key_values(key: str) -> dict[str, str]:
    """The text of each column of a key that :func:`key_texts` has made, by column name."""
    values: dict[str, str] = json.loads(key)
    return values


def _quoted(texts: pa.Array) -> pa.Array:
    """Each text as JSON."""
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        quoted = (
            None if text is None else json.dumps(text, ensure_ascii=False)
            for text in texts.to_pylist()
        )
        return pa.array(quoted, _TEXT)
    quote = pa.scalar('"', _TEXT)
    return pc.binary_join_element_wise(quote, texts, quote, pa.scalar("", _TEXT))
