"""Checks of publications: the server's, the columns and messages that they send, and our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pgsluice.config import SubscriptionConfig
from pgsluice.definitions.published import PublishedRelation, disagreeing
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import ConfigError, TableError
from pgsluice.preflight.facts import SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.publication import (
    Publication,
    Publications,
    Publisher,
    Statements,
    check_replica_identity,
    subscribed,
)
from pgsluice.shown import first_names, shown
from pgsluice.sql import SqlRefused, quote_identifier

_SENT_LESS = (
    "add the column to the server's publications, or remove it from the configuration's "
    "publications"
)
_VERBS: tuple[Literal["update", "delete"], ...] = ("update", "delete")
_AS_TEXT = "remove binary from [source]: the server then sends text, which is exact for every type"
_READ_ONLY = (
    "sessions of role {} may not write (default_transaction_read_only of the role, the database, "
    "the server or the dsn's options)"
)


def check_publications(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the server's publications exist, or the first run can create them."""
    publications, server = facts.publications, facts.server
    for name in publications.existing:
        yield ok("publication", f"{name} exists")
    if publications.problem is not None:
        yield error("publication", publications.problem, "set others in [source] publications")
    elif publications.missing:
        yield _missing(facts)
        for name, near in publications.similar.items():
            yield warning(
                "publication",
                f"publication {shown(name)} does not exist, but publication {shown(near)} does",
                f"if you mean {shown(near)}, set it in [source] publications; else the first run "
                f"creates publication {shown(name)}, for all tables",
            )
    if publications.ours and server.is_read_only:
        yield warning(
            "publication",
            "pgsluice cannot add later tables to the publications "
            f"{first_names(publications.ours)}, since {_READ_ONLY.format(server.user)}",
            server.writable_sql,
        )
    if publications.of_others:
        user = quote_identifier(server.user)
        yield warning(
            "publication",
            f"pgsluice cannot add later tables to the publications "
            f"{first_names(publications.of_others)}, and `pgsluice drop` cannot remove them: "
            f"pgsluice created them, but role {server.user} does not own them",
            "\n".join(
                f"ALTER PUBLICATION {quote_identifier(name)} OWNER TO {user};"
                for name in publications.of_others
            ),
        )
    if publications.left and not publications.missing:
        yield warning(
            "publication",
            f"some tables are not in pgsluice's publications, and role {server.user} may not add "
            "them",
            "\n".join(f"{statement};" for statement in publications.left),
        )


def _missing(facts: SourceFacts) -> Finding:
    publications, server = facts.publications, facts.server
    missing = ", ".join(publications.missing)
    if server.is_standby:
        return error(
            "publication",
            f"publication {missing} does not exist, and the server is a standby, which cannot "
            "create it",
            f"-- run on the primary:\n{publications.statements}",
        )
    if publications.foreign_tables:
        return error(
            "publication",
            f"publication {missing} does not exist, and role {server.user} may not publish these "
            f"tables, which it does not own: {first_names(publications.foreign_tables)}",
            f"-- run as a superuser, or as the owner of the tables:\n{publications.statements}",
        )
    if not server.may_create:
        database, user = quote_identifier(server.database), quote_identifier(server.user)
        return error(
            "publication",
            f"publication {missing} does not exist, and role {server.user} may not create it",
            f"GRANT CREATE ON DATABASE {database} TO {user};",
        )
    if server.is_read_only:
        return error(
            "publication",
            f"publication {missing} does not exist, and {_READ_ONLY.format(server.user)}",
            server.writable_sql,
        )
    return ok("publication", f"publication {missing} does not exist yet: the first run creates it")


def check_column_lists(facts: SourceFacts) -> Iterator[Finding]:
    """Whether publications have the same columns of each table, as PostgreSQL requires."""
    if disagreement := disagreeing(facts.sent.values()):
        yield error("publication", disagreement.what, disagreement.hint)


def check_generated_columns(facts: SourceFacts) -> Iterator[Finding]:
    """Which generated columns the targets will not have."""
    for oid, relation in facts.sent.items():
        table = facts.catalog.tables.get(oid)
        columns = table.columns if table is not None else ()
        sent = {name for by in relation.by for name in by.columns or ()}
        unsent = [c for c in columns if c.generated and c.name not in sent]
        if not unsent or all(by.has_list for by in relation.by):  # a list is the user's choice
            continue
        title = shown(f"{relation.namespace}.{relation.name}")
        names = first_names([shown(column.name) for column in unsent])
        can_be_sent = facts.server.version_num >= 180000 and all(
            column.generated == "s" for column in unsent
        )
        yield warning(
            "generated columns",
            f"table {title}: the target will lack the generated column(s) {names}, which the "
            "server does not send",
            _send_generated(facts, relation)
            if can_be_sent
            else "this server cannot send them: compute their values from the other columns, if "
            "you need them",
        )


def _send_generated(facts: SourceFacts, relation: PublishedRelation) -> str:
    """The statement with which a table's publications send its stored generated columns."""
    if not facts.publications.existing:
        return (
            "to receive these columns, run `pgsluice check CONFIG` again after the first run, "
            "which creates the publication: it then prints the ALTER PUBLICATION for it"
        )
    statements = [
        f"ALTER PUBLICATION {quote_identifier(name)} SET (publish_generated_columns = stored);"
        for name in sorted({by.publication for by in relation.by if by.columns is None})
    ]
    return "\n".join(["to receive these columns:", *statements])


def check_binary(facts: SourceFacts) -> Iterator[Finding]:
    """Whether every published column can be sent and read in binary form.

    The server sends a value in binary form if its type has a send function. Arrays, ranges and
    composites always have one, but it fails if a type inside has none (aclitem): pgoutput then
    fails at that row each time. Some binary forms have less information than the text form (reg*
    types are sent as OIDs), or only their extension can decode them. Source:
    ``logicalrep_write_tuple`` in src/backend/replication/logical/proto.c; ``array_send``.
    """
    if facts.column_types is None:
        return
    unsendable = [t for t in facts.column_types if t.is_inside and not t.is_sent]
    unreadable = [t for t in facts.column_types if t.is_sent and not t.is_read]
    for column_type in unsendable:
        yield error(
            "binary",
            f"column {column_type.shown}: type {column_type.type_name} inside another type has no "
            "binary form. The server stops sending changes of all tables at the first such row",
            _AS_TEXT,
        )
    for column_type in unreadable:
        yield warning(
            "binary",
            f"column {column_type.shown}: pgsluice cannot convert the binary form of type "
            f"{column_type.type_name} to text. The first such value parks the table",
            _AS_TEXT,
        )
    if not unsendable and not unreadable:
        yield ok("binary", "every published column has an exact binary form, or is sent as text")


def check_messages(facts: SourceFacts) -> Iterator[Finding]:
    """Whether messages of rolled back savepoints would be received."""
    source = facts.config.source
    if source.messages and source.streaming not in (None, "off"):
        yield warning(
            "messages",
            f'with streaming = "{source.streaming}", messages of pg_logical_emit_message are '
            "delivered even if their savepoint was rolled back: in a streamed transaction the "
            "server does not tell which savepoint a message belongs to",
            "if your application may roll back a savepoint after it has sent a message in it, set "
            'streaming = "off" in [source]',
        )


def check_own_publications(facts: SourceFacts) -> Iterator[Finding]:
    """Whether each subscription gets what the configuration's own publications promise it.

    Executing the statements checks what PostgreSQL checks when a publication is created. What
    PostgreSQL refuses at the first UPDATE or DELETE is a warning here, because it would park the
    table. Our rules apply to what the server's publications send (contracts: publishing): a column
    that the server does not send, or a row filter on the server that turns UPDATEs into actions
    that ours do not publish, is an error.
    """
    if facts.config.publications is None:
        return  # then no subscription names any: load_config refuses it
    try:
        publications = Statements.read(facts.config.publications).publications(facts.catalog)
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
            "INSERTs and DELETEs, but the configuration's publications do not publish inserts, "
            "updates and deletes under one and the same filter",
            "publish all three under one filter in the configuration, or remove the row filter "
            "from the server's publications",
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
                    f"the first {verb} parks the table. Before that, change the publication, or "
                    "give the table a replica identity with all columns of its row filter and "
                    "without columns that its column list omits: ALTER TABLE … REPLICA IDENTITY "
                    "USING INDEX …; or FULL, which allows no column list",
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
    """Whether the server's row filter turns an UPDATE into actions that ours treat differently."""
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
