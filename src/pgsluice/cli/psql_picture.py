"""Draws publications and tables like psql 18: ``\\dRp+`` and ``\\d``.

Source: src/bin/psql/describe.c (describePublications, describeOneTableDetails);
src/fe_utils/print.c (print_aligned_text, border 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from pgsluice.cli.source_view import OWNER, SourceView
from pgsluice.config.values.table_names import publication_named
from pgsluice.definitions.source_tables import SourceColumn, SourceTable
from pgsluice.errors import ConfigError
from pgsluice.publication import OwnedPublication, Publication, PublicationTable
from pgsluice.shown import shown

_KINDS = {
    "r": "Table",
    "p": "Partitioned table",
    "f": "Foreign table",
    "v": "View",
    "m": "Materialized view",
}
_NEWEST = 180000


def pictures(view: SourceView, name: str | None) -> Iterator[str]:
    """A picture of each publication, then of each of their tables.

    Raises:
        ConfigError: there is no publication with this name.
    """
    meant = name and publication_named(name, [owned.publication.name for owned in view.all])
    drawn = [owned for owned in view.all if name is None or owned.publication.name == meant]
    if name is not None and not drawn:
        names = ", ".join(f'"{owned.publication.name}"' for owned in view.all) or "none"
        raise ConfigError(
            f'no publication in use, of the server or of [publications], has the name "{name}"',
            hint=f"give the name of one of these publications: {names}",
        )
    for owned in drawn:
        version = {} if owned.owner == OWNER else {"server_version": view.server_version}
        yield publication_picture(owned, **version)
    publications = [owned.publication for owned in view.all]
    for table in _tables(view, [owned.publication for owned in drawn]):
        yield table_picture(table, publications)


def _tables(view: SourceView, publications: list[Publication]) -> list[SourceTable]:
    """The tables of these publications, sorted by name."""
    tables = [
        table
        for table in view.catalog.tables.values()
        if table.is_publishable
        and any(
            publication.all_tables
            or table.namespace in publication.schemas
            or publication.table(table.oid)
            for publication in publications
        )
    ]
    return sorted(tables, key=lambda table: (table.namespace.encode(), table.name.encode()))


def publication_picture(owned: OwnedPublication, server_version: int = _NEWEST) -> str:
    """One publication as ``\\dRp+`` prints it, with the columns of this server version."""
    publication = owned.publication
    cells = [
        ("Owner", owned.owner, 0),
        ("All tables", _flag(publication.all_tables), 0),
        ("Inserts", _flag("insert" in publication.publish), 0),
        ("Updates", _flag("update" in publication.publish), 0),
        ("Deletes", _flag("delete" in publication.publish), 0),
        ("Truncates", _flag("truncate" in publication.publish), 110000),
        ("Generated columns", publication.publish_generated_columns, 180000),
        ("Via root", _flag(publication.publish_via_partition_root), 130000),
    ]
    shown = [(header, value) for header, value, since in cells if server_version >= since]
    footers = []
    if publication.tables:
        footers.append("Tables:")
        ordered = sorted(publication.tables, key=lambda t: (t.namespace.encode(), t.name.encode()))
        footers += (f'    "{t.namespace}.{t.name}"{_details(t)}' for t in ordered)
    if publication.schemas:
        footers.append("Tables from schemas:")
        footers += (f'    "{name}"' for name in sorted(publication.schemas, key=str.encode))
    headers, values = zip(*shown, strict=True)
    title = f"Publication {publication.name}"
    return aligned(title, headers, [values], footers or ["(1 row)"])


def table_picture(table: SourceTable, publications: Iterable[Publication]) -> str:
    """The columns of a table as ``\\d`` prints them, and its ``Publications:`` lines."""
    title = f'{_KINDS.get(table.kind, "Relation")} "{table.namespace}.{table.name}"'
    headers = ("Column", "Type", "Collation", "Nullable", "Default")
    rows = [
        (
            column.name,
            column.display_type,
            column.display_collation,
            "not null" if column.not_null else "",
            _default(column),
        )
        for column in table.columns
    ]
    footers = publication_lines(table, publications)
    return aligned(title, headers, rows, footers)


def publication_lines(table: SourceTable, publications: Iterable[Publication]) -> list[str]:
    """The lines from ``Publications:`` on; empty if no publication has the table."""
    lines = []
    for publication in sorted(publications, key=lambda publication: publication.name.encode()):
        member = publication.table(table.oid)
        if member is not None:
            lines.append(f'    "{publication.name}"{_details(member)}')
        is_covered = publication.all_tables or table.namespace in publication.schemas
        if is_covered and table.is_publishable:
            lines.append(f'    "{publication.name}"')
    return ["Publications:", *dict.fromkeys(lines)] if lines else []


def _details(table: PublicationTable) -> str:
    columns = "" if table.columns is None else f" ({', '.join(table.columns)})"
    return columns + ("" if table.where is None else f" WHERE {table.where}")


def _flag(value: bool) -> str:
    return "t" if value else "f"


def _default(column: SourceColumn) -> str:
    if column.identity:
        when = "always" if column.identity == "a" else "by default"
        return f"generated {when} as identity"
    match column.generated:
        case "s":
            return f"generated always as ({column.display_default}) stored"
        case "v":
            return f"generated always as ({column.display_default})"
    return column.display_default


def aligned(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], footers: Sequence[str]
) -> str:
    """A table aligned like psql's, with title, footers and a final empty line."""
    title, headers, footers = shown(title), tuple(map(shown, headers)), list(map(shown, footers))
    rows = [tuple(map(shown, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    total = sum(widths) + 3 * len(widths) - 1
    space = (total - cell_len(title)) // 2 if cell_len(title) < total else 0
    lines = [" " * space + title]
    lines.append(" " + " | ".join(map(_centred, headers, widths)) + " ")
    lines.append("+".join("-" * (width + 2) for width in widths))
    for row in rows:
        padded = [
            text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)
        ]
        lines.append(" " + " | ".join([*padded[:-1], row[-1]]))
    return "\n".join([*lines, *footers, ""])


def _centred(text: str, width: int) -> str:
    space = width - cell_len(text)
    return " " * (space // 2) + text + " " * (space - space // 2)
