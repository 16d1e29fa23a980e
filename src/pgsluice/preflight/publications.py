"""Checks of the server's publications, of the published columns in binary form, and of messages."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.definitions.published import PublishedRelation, disagreeing
from pgsluice.monitor.wording import first_names
from pgsluice.preflight.facts import SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.shown import shown
from pgsluice.sql import quote_identifier

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
            f"publication {missing} does not exist, and only their owners may publish these "
            f"tables: {first_names(publications.foreign_tables)}",
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
            else "compute their values from the other columns, if you need them",
        )


def _send_generated(facts: SourceFacts, relation: PublishedRelation) -> str:
    """The statement with which a table's publications send its stored generated columns."""
    if not facts.publications.existing:
        return (
            "to receive these columns, run `pgsluice check CONFIG` after the first run, which "
            "prints the statement"
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
            f'with streaming = "{source.streaming}", pgsluice also keeps logical messages of '
            "savepoints that were rolled back: in a streamed transaction the server does not tell "
            "which savepoint a message belongs to",
            "if your application may roll back a savepoint after it has sent a message in it, set "
            'streaming = "off" in [source]',
        )
