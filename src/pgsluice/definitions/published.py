"""Which relations the server's publications send, and with which columns and rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pgsluice.errors import SourceRefused
from pgsluice.shown import shown


@dataclass(frozen=True, slots=True)
class PublishedBy:
    """How one publication publishes a relation.

    Attributes:
        columns: the sent columns, in the table's order; None: all columns that are not generated.
        row_filter: the WHERE clause, as the server prints it.
        sends_all: whether it sends every column that is not generated: for the server, a list of
            all of them is the same as no list.
        generated: its ``publish_generated_columns``; None if that makes no difference: it has a
            column list for the relation, or no publication sends a generated column of it.
    """

    publication: str
    actions: frozenset[str]
    columns: tuple[str, ...] | None
    row_filter: str | None
    sends_all: bool = field(default=False, compare=False)
    generated: str | None = field(default=None, compare=False)

    @property
    def has_list(self) -> bool:
        """Whether this publication has a column list for the relation."""
        return self.columns is not None and self.generated is None


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A relation that a publication sends: a table, a leaf partition, or, with via_root, a
    partitioned table.

    Attributes:
        sent_as: the relation whose name pgoutput uses: the topmost published one above it, else
            itself.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    by: tuple[PublishedBy, ...]
    sent_as: int

    @property
    def actions(self) -> frozenset[str]:
        """The actions that at least one of the publications publishes."""
        return frozenset().union(*(publication.actions for publication in self.by))


def disagreeing(relations: Iterable[PublishedRelation]) -> SourceRefused | None:
    """PostgreSQL's error for publications that send one table differently, with what to do: the
    walsender fails at each first change of the table. None if there is no such table.

    CREATE SUBSCRIPTION refuses most cases: fetch_relation_list() in subscriptioncmds.c. Source:
    check_and_init_gencol() and pgoutput_column_list_init() in pgoutput.c.
    """
    for relation in relations:
        title = shown(f"{relation.namespace}.{relation.name}")
        where = f'for table "{title}" in different publications'
        if len({by.generated for by in relation.by} - {None}) > 1:
            return SourceRefused(
                f"cannot use different values of publish_generated_columns {where}",
                hint="set publish_generated_columns alike in all publications of [source], or name "
                "fewer of them",
            )
        lists = {None if by.columns is None or by.sends_all else by.columns for by in relation.by}
        if len(lists) > 1:
            return SourceRefused(
                f"cannot use different column lists {where}",
                hint="give the table the same columns in all publications of [source], or name "
                "fewer of them",
            )
    return None
