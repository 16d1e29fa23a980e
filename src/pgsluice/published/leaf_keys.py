"""The key of a partitioned table without an own key: the key of its leaf partitions, if valid for
all of them.

In PostgreSQL 10 a partition root cannot have a key, and later it need not have one. Changes then
have the key of their leaf partition. It can be the table's key under PostgreSQL's rules for a
unique constraint of a partitioned table, because it has to identify the rows of all leaves in the
target:

- All leaves have the same key.
- It has the partition columns of the table and of all partitioned tables below it. Otherwise two
  partitions may have rows with the same key. A partition expression is part of no key.

Otherwise the table is one without a key: changes have to carry the whole old row.

A subscription can configure a key that the server does not guarantee; then the user is responsible
for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from pgsluice.facts import RelationFacts

_MOST_NAMED = 3


class KeyProblem(NamedTuple):
    """Why no key is valid for all leaf partitions of a table whose updates or deletes are sent."""

    what: str
    hint: str


def key_of(facts: RelationFacts) -> tuple[str, ...]:
    """The primary key, else the columns of the replica identity's index; empty if there is none."""
    return facts.primary_key or facts.identity_key


def with_leaves_key(
    table: RelationFacts,
    published: Sequence[RelationFacts],
    partition_columns: Collection[str | None],
) -> RelationFacts:
    """Give a table without a key that of its leaf partitions, if it is valid for all of them.

    Args:
        published: the relations that are sent for it.
        partition_columns: the partition key columns of it and of the partitioned tables below it;
            None for an expression.
    """
    if key_of(table) or not published:
        return table
    if find_key_problem(table, published, partition_columns):
        is_full = all(leaf.replica_identity == "f" for leaf in published)
        return replace(table, replica_identity="f") if is_full else table
    leaf = published[0]
    identities = {(one.identity_key, one.replica_identity) for one in published}
    # Whether each leaf's old tuples carry the key is asked when its changes come.
    identity, kind = next(iter(identities)) if len(identities) == 1 else ((), "f")
    return replace(
        table, primary_key=leaf.primary_key, identity_key=identity, replica_identity=kind
    )


def find_key_problem(
    table: RelationFacts,
    published: Sequence[RelationFacts],
    partition_columns: Collection[str | None],
) -> KeyProblem | None:
    """Why a table without a key cannot have that of its leaf partitions; None if it can, if it has
    its own, or if its leaves have no key at all.

    Args:
        table, published, partition_columns: as for :func:`with_leaves_key`.
    """
    if key_of(table) or not any(key_of(leaf) for leaf in published):
        return None
    by_columns = {frozenset(key_of(leaf)): leaf for leaf in reversed(published)}
    if len(by_columns) > 1:
        return _different_keys(table, published, list(reversed(by_columns.values())))
    key = key_of(published[0])
    missing = sorted(str(column) for column in partition_columns if column and column not in key)
    if not missing and None not in partition_columns:
        return None
    return _ambiguous_key(table, key, missing)


def _different_keys(
    table: RelationFacts, published: Sequence[RelationFacts], examples: Sequence[RelationFacts]
) -> KeyProblem:
    keys = [f"{_title(leaf)} ({', '.join(key_of(leaf))})" for leaf in examples[:_MOST_NAMED]]
    key = list(dict.fromkeys(column for leaf in published for column in key_of(leaf)))
    without = [
        f"ALTER TABLE {_title(leaf)} REPLICA IDENTITY FULL"
        for leaf in published
        if leaf.replica_identity != "f" and not set(key) <= set(leaf.identity_key)
    ]
    full = "; ".join(without[:_MOST_NAMED]) + (" …" if len(without) > _MOST_NAMED else "")
    return KeyProblem(
        f"{_title(table)} has no key that is valid for all of its partitions: their keys are "
        f"{', '.join(keys)}",
        f"give {_title(table)} a primary key; or set {_setting(table, key)} in the subscription"
        + (f", so that all updates and deletes carry it: {full}" if full else ""),
    )


def _ambiguous_key(table: RelationFacts, key: Sequence[str], missing: Sequence[str]) -> KeyProblem:
    lacks = f"the partition column {', '.join(missing)}" if missing else "the partition expression"
    return KeyProblem(
        f"{_title(table)} has no key that is valid for all of its partitions: two partitions may "
        f"have rows with the same ({', '.join(key)}), since their keys lack {lacks}",
        f"if no two rows ever have the same, set {_setting(table, key)} in the subscription"
        + (f"; else give {_title(table)} a primary key with {', '.join(missing)}" * bool(missing)),
    )


def _setting(table: RelationFacts, key: Sequence[str]) -> str:
    """The subscription's ``key`` setting, as in the configuration."""
    return f"key = {{ {json.dumps(_title(table))} = {json.dumps(list(key))} }}"


def _title(facts: RelationFacts) -> str:
    return f"{facts.namespace}.{facts.name}"
