"""Whether a target gets all changes of its table, and how to solve it if not.

A table can be ready while its target lacks rows that the server does not send. That is no error: it
may be wanted. But it is reported as long as it lasts: in the record, by ``status`` and ``check``,
and in the live view. Each catalog refresh records it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.events import INSERTS_ONLY
from pgsluice.hints import copy_again
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules.known import ALL_ACTIONS
from pgsluice.shown import shown
from pgsluice.spool import SubscriptionRecord, TableRecord, TargetName
from pgsluice.sql import quote_identifier
from pgsluice.subscription.lifecycle.look_events import Assessed
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

_ORDER = ("insert", "update", "delete", "truncate")


def names_to_find(
    record: SubscriptionRecord, source: Sequence[ReplicatedTable]
) -> frozenset[TargetName]:
    """The names of targets that no published table has."""
    known = {table.target_name for table in (*record.tables.values(), *record.unpublished.values())}
    sent = {(table.facts.namespace, table.facts.name) for table in source}
    return frozenset({*known, *record.former} - sent)


def record_completeness(
    tables: SubscriptionTables,
    source: Sequence[ReplicatedTable],
    found: Collection[TargetName],
    publications: Sequence[str],
    config: Config,
    subscription: SubscriptionConfig,
) -> None:
    """Record durably which targets do not get all changes of their table, with the reasons: rows
    that were not copied, actions or columns that are not published, a table with another name.

    Args:
        found: those of the names of :func:`names_to_find` that a table of the source still has.
        publications: the server's publications that the stream requests.
    """
    sent = {table.facts.oid: table for table in source}
    with tables.changing():
        record = tables.record

        def standing(name: TargetName) -> str:
            left = record.former.get(name)
            renamed = None if left is None else record.tables.get(left.oids[0])
            return why_standing(
                name,
                is_there=name in found,
                publication=next(iter(publications), "…"),
                has_rules=subscription.publications is not None,
                new_name="" if renamed is None else renamed.title,
            )

        for oid, known in record.tables.items():
            if oid in sent:
                reasons = why_incomplete(
                    sent[oid],
                    known,
                    origin=config.source.origin,
                    has_key=known.title in subscription.key,
                    needs_key=subscription.deleted_column is not None,
                )
            else:
                reasons = (standing(known.target_name),)
            if reasons != known.incomplete:
                tables.apply(oid, Assessed(reasons))
        former = {name: replace(left, why=standing(name)) for name, left in record.former.items()}
        if former != record.former:
            tables.keep_former(former)


def why_incomplete(
    table: ReplicatedTable,
    record: TableRecord,
    *,
    origin: str,
    has_key: bool,
    needs_key: bool = False,
) -> tuple[str, ...]:
    """Which changes the target of a published table does not get, as sentences; empty: it gets all.

    Args:
        origin: the source's option ``origin``.
        has_key: the configuration of the subscription has a key for the table.
        needs_key: the rows of tables without a key cannot be found.
    """
    facts, reasons = table.facts, []
    lacking = {each.rpartition(":")[2] for each in table.fingerprint.lacking}
    actions = table.fingerprint.actions - lacking
    missing = [f"{action}s" for action in _ORDER if action in ALL_ACTIONS - actions]
    has_identity = facts.replica_identity == "f" or (
        facts.replica_identity != "n" and bool(facts.identity_key)
    )
    unsent = f"the server does not send the {_listed(missing)} of the table" if missing else ""
    if {"updates", "deletes"} <= set(missing) and "insert" in actions:
        unsent = f"{INSERTS_ONLY}: the server does not send the {_listed(missing)} of the table"
    if {"updates", "deletes"} & set(missing) and not has_identity:
        reasons.append(
            f"{unsent}, since the table has no replica identity\n  → {_way_to_a_key(table)}"
        )
    elif missing:
        reasons.append(
            f"{unsent}, since the publications exclude them\n  → {_way_to_all_actions(table)}"
        )
    has_key = has_key or bool(facts.primary_key)
    is_full = facts.replica_identity == "f"
    if needs_key and is_full and not has_key and "update" in actions and not record.is_parked:
        reasons.append(
            "the table has no key, but deleted_column needs one: the first update or delete parks "
            "the table\n"
            f"  → {_way_to_a_key(table)}"
        )
    if table.key_problem is not None and not is_full and not has_key:
        what, hint = table.key_problem
        reasons.append(
            f"{what}; an update or delete without the whole old row parks the table\n  → {hint}"
        )
    if table.foreign_partitions:
        listed = _listed([shown(title) for title in table.foreign_partitions])
        reasons.append(
            f"the target lacks the rows of the foreign partitions {listed}: the server does not "
            "send rows of foreign tables\n"
            "  → to receive these rows, keep them in a partition that is an ordinary table"
        )
    if table.unsent:
        reasons.append(
            f"the target lacks the columns {_listed(table.unsent)}: they are in the "
            "configuration's publications, but the server's publications do not send them\n"
            "  → add these columns to the column list of the server's publication; for generated "
            "columns, set publish_generated_columns = stored (from PostgreSQL 18 on). pgsluice "
            "then copies the table again, so that older rows get the values, too"
        )
    if origin == "none":
        reasons.append(
            "the server does not send changes of the table that the server itself received by "
            'replication (origin = "none")\n'
            '  → set origin = "any" in [source] to receive these changes'
        )
    if not record.copy_number and not record.is_to_copy:
        reasons.append(
            "pgsluice has not copied the rows that the table had before this subscription "
            "replicated it (copy_data = false)\n"
            f"  → to copy these rows, run {copy_again(record.title)}"
        )
    return tuple(reasons)


def _way_to_a_key(table: ReplicatedTable) -> str:
    """What gives updates and deletes of a table its key, or else the whole old row."""
    name = _sql_name((table.facts.namespace, table.facts.name))
    if table.unique_index:
        index = quote_identifier(table.unique_index)
        return f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}"
    key = (
        f"choose columns that identify each row of {name}, and make them its primary key: no "
        "unique index has only columns that are NOT NULL"
    )
    if table.facts.replica_identity == "f":
        return key
    return f"{key}. If there are none: ALTER TABLE {name} REPLICA IDENTITY FULL"


def _way_to_all_actions(table: ReplicatedTable) -> str:
    """The statement with which the server's publications send all actions of a table."""
    statements = [
        f"ALTER PUBLICATION {quote_identifier(name)} SET (publish = 'insert, update, delete, "
        "truncate')"
        for name in table.publications
    ]
    own = "change the file of [publications]; and if the server does not send them: "
    return own * (table.rules is not None) + "; ".join(statements)


def why_standing(
    name: TargetName, *, is_there: bool, publication: str, has_rules: bool, new_name: str = ""
) -> str:
    """Why a target is no longer updated, as a sentence.

    Args:
        is_there: a table with this name exists at the source.
        publication: one of the server's publications that the stream requests.
        has_rules: pgsluice's own publications select from what the server sends.
        new_name: the new name of the table that used the target; empty: there is none.
    """
    title = shown(".".join(name))
    if is_there:
        statement = f"ALTER PUBLICATION {quote_identifier(publication)} ADD TABLE {_sql_name(name)}"
        own = (
            f"add table {title} to a publication of this subscription; if the server does not send "
            "the table, "
        )
        return (
            f"the server does not send the table that now has the name {title}\n"
            f"  → {own * has_rules}{statement}"
        )
    if new_name:
        return f"the table of this target is now called {new_name}, and uses the target {new_name}"
    return f"no table has the name {title} any more"


def _sql_name(name: TargetName) -> str:
    return ".".join(map(quote_identifier, name))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
