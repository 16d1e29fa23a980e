"""A text of statements -> the publications that it makes, executed from nothing.

pgsluice keeps no state of its own publications: the file, or the text in the configuration, is
the sequence of statements that makes them, and is executed again at each start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pgsluice.catalog.source_tables import SourceCatalog
from pgsluice.config import PublicationsConfig
from pgsluice.errors import ConfigError
from pgsluice.publication.errors import PublicationError
from pgsluice.publication.execute import execute
from pgsluice.publication.model import Publication, Publications
from pgsluice.publication.parse import parse_statements
from pgsluice.publication.row_filter.errors import FilterNotExact


def load_publications(text: str, catalog: SourceCatalog) -> Publications:
    """The publications that a text of statements makes.

    Raises:
        PublicationError: the first statement that PostgreSQL refuses; the fact ``line`` is
            where it begins.
        FilterNotExact: a filter that PostgreSQL takes and we cannot evaluate exactly.
    """
    publications = Publications()
    for one in parse_statements(text):
        try:
            publications = execute(publications, one.statement, catalog)
        except (PublicationError, FilterNotExact) as error:
            located = error.located_in(text, 0)
            located.facts["line"] = text.count("\n", 0, one.start) + 1
            raise located from None
    return publications


def load_file(path: Path, catalog: SourceCatalog) -> Publications:
    """The publications that a file of statements makes.

    Raises:
        ConfigError: it cannot be read, or as :func:`load_publications`; the message begins with
            the file's name and the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    try:
        return load_publications(text, catalog)
    except (PublicationError, FilterNotExact) as error:
        line = error.facts.get("line") or text.count("\n", 0, error.position or 0) + 1
        raise ConfigError(f"{path.name}:{line}: {error}", **error.facts) from error


def load_configured(section: PublicationsConfig | None, catalog: SourceCatalog) -> Publications:
    """The publications that a configuration's ``[publications]`` makes; none without it.

    Raises:
        ConfigError: as :func:`load_file`; of a text in the configuration it says so.
    """
    if section is None:
        return Publications()
    if section.file is not None:
        return load_file(section.file, catalog)
    try:
        return load_publications(section.sql or "", catalog)
    except ConfigError as error:
        raise ConfigError(f"[publications] sql: {error}", **error.facts) from error


def subscribed(publications: Publications, names: Iterable[str]) -> tuple[Publication, ...]:
    """Those that a subscription names, in its order.

    Raises:
        PublicationError: one does not exist.
    """
    found = []
    for name in names:
        publication = publications.get(name)
        if publication is None:
            raise PublicationError(f'publication "{name}" does not exist')
        found.append(publication)
    return tuple(found)
