"""Publications of our own: whether each subscription gets from them what they say.

What PostgreSQL checks when a publication is made is checked when the statements are executed.
What it checks at the first UPDATE or DELETE is a warning here: it would park the table. And our
rules act on what the server's publications send (contracts, section 6), so that a column that
these leave out, or a filter of theirs that turns UPDATEs into what ours do not publish, is an
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pgsluice.catalog import PublishedRelation
from pgsluice.catalog.publications import PublishedBy
from pgsluice.catalog.source_tables import SourceCatalog, SourceTable
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import ConfigError, TableError
from pgsluice.monitor.findings import Finding, error, ok, warning
from pgsluice.publication import (
    Publication,
    PublicationError,
    Publications,
    check_replica_identity,
    load_configured,
    subscribed,
)
from pgsluice.publication.publish import Publisher

_SENT_LESS = "have the server's publications send it, or leave it out of ours"
_VERBS: tuple[Literal["update", "delete"], ...] = ("update", "delete")


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """What our publications are judged by.

    Attributes:
        catalog: the source's tables.
        sent: what the server's publications send, or the first run's would, by OID.
    """

    catalog: SourceCatalog
    sent: Mapping[int, PublishedRelation]


def would_send(
    catalog: SourceCatalog, tables: Mapping[int, frozenset[str]]
) -> dict[int, PublishedRelation]:
    """What publications of these tables, with these actions, will send: a partitioned table's
    leaves."""
    found = {}
    for oid, actions in tables.items():
        top = catalog.tables[oid]
        by = (PublishedBy("", actions, None, None),)
        for one in (top, *catalog.below(top)):
            if not one.is_partitioned and (one is top or top.is_partitioned):
                found[one.oid] = PublishedRelation(one.oid, one.namespace, one.name, one.kind, by)
    return found


def judge_own_publications(config: Config, facts: OwnFacts) -> Iterator[Finding]:
    """The statements, then each subscription that names publications."""
    if config.publications is None:
        return  # then no subscription names any: the configuration would be refused
    try:
        publications = load_configured(config.publications, facts.catalog)
    except ConfigError as refused:
        what = str(refused)
        yield error("publications", what, "correct it: nothing runs before")
        return
    yield ok("publications", f"our own: {', '.join(one.name for one in publications) or 'none'}")
    for one in config.subscriptions:
        yield from _judge_subscription(one, publications, facts)


def _judge_subscription(
    subscription: SubscriptionConfig, publications: Publications, facts: OwnFacts
) -> Iterator[Finding]:
    if (named := subscription.publications) is None:
        return
    missing = [name for name in named if publications.get(name) is None]
    for name in missing:
        yield error(
            subscription.name,
            f'publication "{name}" does not exist',
            "name one of: " + (", ".join(one.name for one in publications) or "(there is none)"),
        )
    if missing:
        return
    own = subscribed(publications, named)
    found, targets = list[Finding](), set[int]()
    for oid, relation in facts.sent.items():
        table = facts.catalog.tables.get(oid)
        if table is None:
            continue
        try:
            publisher = Publisher.of(own, table, facts.catalog)
        except (PublicationError, TableError) as refused:
            found.append(error(subscription.name, str(refused), "correct the publication"))
            continue
        if publisher is not None:
            targets.add(publisher.published_as.oid)
            found += _judge_relation(subscription, own, publisher, relation, facts.catalog)
    found += _unsent(subscription, own, facts)
    yield from dict.fromkeys(found)
    if not found:
        count = f"{len(targets)} table{'' if len(targets) == 1 else 's'}"
        yield ok(subscription.name, f"{count} published by {', '.join(named)}")


def _judge_relation(
    subscription: SubscriptionConfig,
    own: Sequence[Publication],
    publisher: Publisher,
    relation: PublishedRelation,
    catalog: SourceCatalog,
) -> Iterator[Finding]:
    table = publisher.resolution.table
    title = f"{relation.namespace}.{relation.name}"
    for column, use in _hidden(publisher, relation, table).items():
        yield error(
            subscription.name,
            f"{title}: {use} the column {column!r}, which the server's publications do not send",
            _SENT_LESS + _about_generated(table, column),
        )
    if _is_turned(publisher, relation):
        yield error(
            subscription.name,
            f"{title}: the server's publications have a row filter, which turns UPDATEs into "
            "INSERTs and DELETEs, and ours do not publish all three under one filter",
            "publish insert, update and delete of it alike, or take the server's filter away",
        )
    for verb in _VERBS:
        if verb in publisher.resolution.published and verb in relation.actions:
            try:
                check_replica_identity(verb, own, table, catalog)
            except PublicationError as refused:
                yield warning(
                    subscription.name,
                    f"{title}: {refused.message}"
                    + (f": {refused.detail}" if refused.detail else ""),
                    f"the first {verb} parks the table: change the publication, or give the table "
                    "a replica identity that fits (ALTER TABLE ... REPLICA IDENTITY USING INDEX; "
                    "FULL holds all columns, and allows no column list)",
                )
                break
    key = subscription.key.get(f"{publisher.published_as.namespace}.{publisher.published_as.name}")
    for column in key or ():
        if column not in publisher.resolution.published_columns:
            yield error(
                subscription.name,
                f"{title}: the key's column {column!r} is not published",
                "add it to the column list, or choose another key",
            )


def _hidden(
    publisher: Publisher, relation: PublishedRelation, table: SourceTable
) -> dict[str, str]:
    """What our rules need and the server does not send: column -> who needs it."""
    sent = {one.name for one in table.columns if not one.generated}
    lists = [by.columns for by in relation.by]
    if lists and lists[0] is not None:
        sent = {name for one in lists for name in one or ()}
    needs = dict.fromkeys(publisher.filter_columns, "the row filter reads")
    for name in publisher.resolution.published_columns:
        needs.setdefault(name, "our publications publish")
    listed = publisher.resolution.columns is not None
    every_by_default = not listed and publisher.resolution.generated_columns == "none"
    return {
        name: use
        for name, use in sorted(needs.items())
        if name not in sent
        # Without a list of ours, what the server sends is all that there is.
        and not (every_by_default and name not in publisher.filter_columns)
    }


def _about_generated(table: SourceTable, column: str) -> str:
    found = table.column(column)
    if found is None or not found.generated:
        return ""
    return " (a generated column: from PostgreSQL 18 on, with publish_generated_columns = stored)"


def _is_turned(publisher: Publisher, relation: PublishedRelation) -> bool:
    """Whether a filter of the server's may make of an UPDATE what ours would treat otherwise."""
    resolution = publisher.resolution
    is_filtered = bool(relation.by) and all(one.row_filter is not None for one in relation.by)
    if not is_filtered or "update" not in resolution.published:
        return False
    filters = {resolution.filters(action) for action in ("insert", "update", "delete")}
    return len(filters) > 1 or not {"insert", "delete"} <= set(resolution.published)


def _unsent(
    subscription: SubscriptionConfig, own: Sequence[Publication], facts: OwnFacts
) -> Iterator[Finding]:
    """Tables that are named and of which the server sends nothing."""
    reached = set(facts.sent)
    for oid in facts.sent:
        if (table := facts.catalog.tables.get(oid)) is not None:
            reached |= {*table.ancestors, *(one.oid for one in facts.catalog.below(table))}
    for publication in own:
        for named in publication.tables:
            if named.oid not in reached:
                yield warning(
                    subscription.name,
                    f"{named.namespace}.{named.name} is in {publication.name}, and the server's "
                    "publications do not send it",
                    "add it to the server's publications",
                )
