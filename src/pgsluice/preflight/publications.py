"""Checks of the server's publications and of logical messages."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.preflight.facts import SourceFacts, quoted
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.preflight.tables import list_names


def check_publications(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the server's publications exist, or the first run can create them."""
    publications, server = facts.publications, facts.server
    for name in publications.existing:
        yield ok("publication", f"{name} exists")
    if not publications.missing:
        return
    missing = ", ".join(publications.missing)
    if publications.problem is not None:
        yield error("publication", publications.problem, "name others in [source] publications")
    elif publications.foreign_tables:
        yield error(
            "publication",
            f"{missing} does not exist, and only a table's owner may publish it: "
            f"{list_names(publications.foreign_tables)}",
            f"as the owner, or a superuser:\n{publications.statements}",
        )
    elif not server.may_create:
        yield error(
            "publication",
            f"{missing} does not exist, and {server.user} may not create it",
            f"GRANT CREATE ON DATABASE {quoted(server.database)} TO {quoted(server.user)};",
        )
    else:
        yield ok("publication", f"{missing} does not exist yet: the first run creates it")


def check_messages(facts: SourceFacts) -> Iterator[Finding]:
    """Whether messages of savepoints that are rolled back would be received."""
    source = facts.config.source
    if source.messages and source.streaming not in (None, "off"):
        yield warning(
            "messages",
            f'streaming = "{source.streaming}": in a streamed transaction, a message of a '
            "savepoint that was rolled back cannot be told from the others, and is kept",
            'streaming = "off", unless no savepoint around a message is ever rolled back',
        )
