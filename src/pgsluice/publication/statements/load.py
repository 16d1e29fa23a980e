"""Executes a text of publication statements, starting without publications.

pgsluice does not store its own publications: the file, or the text in the configuration, has the
statements that create them, and is executed again at each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pgsluice.config import PublicationsConfig
from pgsluice.definitions.publications import Publication, Publications
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.errors import ConfigError
from pgsluice.publication.statements.execute import execute, existing
from pgsluice.publication.statements.parameters import with_parameters
from pgsluice.publication.statements.parse import parse_statements
from pgsluice.publication.statements.syntax import (
    AlterObjects,
    AlterParameters,
    CreatePublication,
    Statement,
    TableObject,
)
from pgsluice.sql import SqlRefused, TokenKind, tokenize


def load_publications(text: str, catalog: SourceCatalog) -> Publications:
    """Create the publications of a text of statements.

    Raises:
        SqlRefused: of the first statement that PostgreSQL refuses; its fact ``line`` is the line
            where that statement begins.
        FilterNotExact: PostgreSQL accepts a filter that we cannot evaluate exactly.
    """
    publications = Publications()
    for statement, start in parse_statements(text):
        try:
            publications = execute(publications, statement, catalog)
        except SqlRefused as error:
            located = error.located_in(text, 0)
            located.facts["line"] = text.count("\n", 0, start) + 1
            raise located from None
    return publications


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a file or of the configuration, as they were when read.

    Attributes:
        text: the statements.
        file: the file's name; None: the statements are in the configuration.
    """

    text: str = ""
    file: str | None = None

    @classmethod
    def read(cls, section: PublicationsConfig | None) -> Statements:
        """Read the statements of ``[publications]``; none without that section.

        Raises:
            ConfigError: the file cannot be read.
        """
        if section is None:
            return cls()
        return cls(section.sql or "") if section.file is None else cls.of_file(section.file)

    @classmethod
    def of_file(cls, path: Path) -> Statements:
        """Read the statements of a file.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return cls(path.read_text(encoding="utf-8"), path.name)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise ConfigError(f"{path} cannot be read: {reason}") from error

    def generated_columns(self) -> frozenset[str] | None:
        """Names of columns in column lists and row filters, which are needed even if they are
        generated.

        Returns:
            None if all stored generated columns are published; no names if the statements are
            refused.
        """
        try:
            statements = [statement for statement, _ in parse_statements(self.text)]
            if any(map(_publishes_generated, statements)):
                return None
            return frozenset(chain.from_iterable(map(_named_columns, statements)))
        except SqlRefused:
            return frozenset()

    def publications(self, catalog: SourceCatalog) -> Publications:
        """Execute the statements on the source's tables.

        Raises:
            ConfigError: as :func:`load_publications`. The message starts with the place of the
                statement: the file's name and line, or ``[publications] sql``.
        """
        try:
            return load_publications(self.text, catalog)
        except SqlRefused as error:
            line = error.facts.get("line") or self.text.count("\n", 0, error.position or 0) + 1
            where = "[publications] sql" if self.file is None else f"{self.file}:{line}"
            raise ConfigError.of_text(f"{where}: {error}", **error.facts) from error


def _publishes_generated(statement: Statement) -> bool:
    if not isinstance(statement, CreatePublication | AlterParameters):
        return False
    made = with_parameters(Publication(""), statement.parameters)
    return made.publish_generated_columns == "stored"


def _named_columns(statement: Statement) -> Iterator[str]:
    """The columns of lists, and all names in row filters."""
    if not isinstance(statement, CreatePublication | AlterObjects):
        return
    for named in statement.objects:
        if isinstance(named, TableObject):
            yield from named.columns or ()
            if named.where is not None:
                tokens = tokenize(named.where.text)
                yield from (str(t.value) for t in tokens if t.kind is TokenKind.NAME)


def subscribed(publications: Publications, names: Iterable[str]) -> tuple[Publication, ...]:
    """The publications that a subscription names, in its order.

    Raises:
        SqlRefused: one does not exist.
    """
    return tuple(existing(publications, name) for name in names)
