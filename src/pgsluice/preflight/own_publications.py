"""Checks of pgsluice's own publications: whether each subscription gets what they promise.

Executing the statements checks what PostgreSQL checks when a publication is created. What
PostgreSQL refuses at the first UPDATE or DELETE is a warning here, because it would park the table.
Our rules apply to what the server's publications send (contracts: publishing): a column that the
server does not send, or a row filter on the server that turns UPDATEs into actions that ours do not
publish, is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pgsluice.config import SubscriptionConfig
from pgsluice.definitions.published import PublishedRelation
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import ConfigError, TableError
from pgsluice.preflight.facts import SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.publication import (
    Publication,
    Publications,
    Publisher,
    check_replica_identity,
    load_configured,
    subscribed,
)
from pgsluice.sql import SqlRefused

_SENT_LESS = (
    "add the column to the server's publications, or remove it from the configuration's "
    "publications"
)
_VERBS: tuple[Literal["update", "delete"], ...] = ("update", "delete")


def check_own_publications(facts: SourceFacts) -> Iterator[Finding]:
    """The statements, then each subscription that names publications."""
    if facts.config.publications is None:
        return  # then no subscription names any: load_config refuses it
    try:
        publications = load_configured(facts.config.publications, facts.catalog)
    except ConfigError as refusal:
        yield error(
            "publications", str(refusal), "correct the statement; no command starts until then"
        )
        return
    names = ", ".join(publication.name for publication in publications) or "none"
    yield ok("publications", f"the configuration's own publications: {names}")
    for subscription in facts.config.subscriptions:
        yield from _check_subscription(subscription, publications, facts)


def _check_subscription(
    subscription: SubscriptionConfig, publications: Publications, facts: SourceFacts
) -> Iterator[Finding]:
    if subscription.publications is None:
        return
    missing = [name for name in subscription.publications if publications.get(name) is None]
    existing = ", ".join(publication.name for publication in publications)
    for name in missing:
        yield error(
            subscription.name,
            f'publication "{name}" does not exist in the configuration',
            "correct `publications` of the subscription; the publications are: "
            f"{existing or 'none'}",
        )
    if missing:
        return
    own = subscribed(publications, subscription.publications)
    findings, targets = list[Finding](), set[int]()
    for oid, relation in facts.sent.items():
        table = facts.catalog.tables.get(oid)
        if table is None:
            continue
        try:
            publisher = Publisher.of(own, table, facts.catalog)
        except (SqlRefused, TableError) as refusal:
            findings.append(error(subscription.name, str(refusal), "correct the publication"))
            continue
        if publisher is not None:
            targets.add(publisher.published_as.oid)
            findings += _check_relation(subscription, own, publisher, relation, facts.catalog)
    findings += _unsent_tables(subscription, own, facts)
    yield from dict.fromkeys(findings)
    if not findings:
        count = "1 table" if len(targets) == 1 else f"{len(targets)} tables"
        yield ok(subscription.name, f"{count} published by {', '.join(subscription.publications)}")


def _check_relation(
    subscription: SubscriptionConfig,
    own: Sequence[Publication],
    publisher: Publisher,
    relation: PublishedRelation,
    catalog: SourceCatalog,
) -> Iterator[Finding]:
    table = publisher.resolution.table
    title = f"{relation.namespace}.{relation.name}"
    for column, use in _unsent_columns(publisher, relation, table).items():
        yield error(
            subscription.name,
            f"table {title}: {use} column {column!r}, which the server's publications do not send",
            _SENT_LESS + _about_generated(table, column),
        )
    if _server_filter_conflicts(publisher, relation):
        yield error(
            subscription.name,
            f"table {title}: the row filter of the server's publications turns UPDATEs into "
            "INSERTs and DELETEs, but the configuration's publications do not publish all three "
            "under one filter",
            "publish inserts, updates and deletes of the table under one filter in the "
            "configuration, or remove the row filter from the server's publications",
        )
    for verb in _VERBS:
        if verb in publisher.resolution.published and verb in relation.actions:
            try:
                check_replica_identity(verb, own, table, catalog)
            except SqlRefused as refusal:
                detail = f": {refusal.detail}" if refusal.detail else ""
                yield warning(
                    subscription.name,
                    f"table {title}: {refusal.message}{detail}",
                    f"the first {verb} parks the table: change the publication, or give the table "
                    "a replica identity that fits (ALTER TABLE ... REPLICA IDENTITY USING INDEX; "
                    "FULL has all columns, and allows no column list)",
                )
                break
    target = publisher.published_as
    for column in subscription.key.get(f"{target.namespace}.{target.name}", ()):
        if column not in publisher.resolution.published_columns:
            yield error(
                subscription.name,
                f"table {title}: no publication sends the key column {column!r}",
                "add this column to the publication's column list, or choose another `key` in the "
                "subscription",
            )


def _unsent_columns(
    publisher: Publisher, relation: PublishedRelation, table: SourceTable
) -> dict[str, str]:
    """The columns that our rules need but the server does not send: name -> what needs it."""
    sent = {column.name for column in table.columns if not column.generated}
    lists = [published.columns for published in relation.by]
    if lists and lists[0] is not None:
        sent = {name for columns in lists for name in columns or ()}
    needs = dict.fromkeys(publisher.filter_columns, "the row filter reads")
    for name in publisher.resolution.published_columns:
        needs.setdefault(name, "the configuration's publications publish")
    has_list = publisher.resolution.columns is not None
    takes_what_is_sent = not has_list and publisher.resolution.generated_columns == "none"
    return {
        name: use
        for name, use in sorted(needs.items())
        if name not in sent and not (takes_what_is_sent and name not in publisher.filter_columns)
    }


def _about_generated(table: SourceTable, name: str) -> str:
    column = table.column(name)
    if column is None or not column.generated:
        return ""
    return " (a generated column: from PostgreSQL 18 on, with publish_generated_columns = stored)"


def _server_filter_conflicts(publisher: Publisher, relation: PublishedRelation) -> bool:
    """Whether a row filter on the server turns an UPDATE into actions that ours treat
    differently."""
    resolution = publisher.resolution
    is_filtered = bool(relation.by) and all(by.row_filter is not None for by in relation.by)
    if not is_filtered or "update" not in resolution.published:
        return False
    filters = {resolution.filters(action) for action in ("insert", "update", "delete")}
    return len(filters) > 1 or not {"insert", "delete"} <= set(resolution.published)


def _unsent_tables(
    subscription: SubscriptionConfig, own: Sequence[Publication], facts: SourceFacts
) -> Iterator[Finding]:
    """Tables in our publications that the server does not send."""
    reached = set(facts.sent)
    for oid in facts.sent:
        if (table := facts.catalog.tables.get(oid)) is not None:
            reached |= {*table.ancestors, *(child.oid for child in facts.catalog.below(table))}
    for publication in own:
        for member in publication.tables:
            if member.oid not in reached:
                yield warning(
                    subscription.name,
                    f"table {member.namespace}.{member.name} is in the configuration's publication "
                    f"{publication.name}, but no publication of the server sends this table",
                    "add this table to one of the server's publications",
                )
