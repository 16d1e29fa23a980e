"""Finds the rules for a relation's changes, from all publications of one subscription.

The server determines this once per relation and walsender. The rules, in its order:

1. A publication publishes the relations that it lists, the relations in its schemas, and partitions
   of both; if it is FOR ALL TABLES, any relation.
2. A relation's changes are published under its own name, or with ``publish_via_partition_root``
   under that of the topmost ancestor in the publication. Among all publications, the highest
   ancestor wins, and only the publications at that level contribute filters and columns; the
   actions of the others are still published.
3. For each action, the filters of these publications are combined with OR. A publication without a
   filter for the table cancels them: one that lists it without WHERE, is FOR ALL TABLES, or has its
   schema.
4. Their column lists and their ``publish_generated_columns`` have to be the same.

If the server itself publishes under the root's name, the partition of a row is unknown. Then rules
for a single partition are refused.

Source: src/backend/replication/pgoutput/pgoutput.c (get_rel_sync_entry,
pgoutput_row_filter_init, check_and_init_gencol, pgoutput_column_list_init).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pgsluice.definitions.publications import ACTIONS, Action, GeneratedColumns, Publication
from pgsluice.definitions.published import PublishedBy
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sql import SqlRefused


class Unfiltered(Enum):
    """Why a publication has no filter for a relation, and so cancels the filters of others."""

    NO_WHERE = "it names the table without a WHERE clause"
    ALL_TABLES = "it is FOR ALL TABLES"
    SCHEMA = "it is FOR TABLES IN SCHEMA of the table's schema"
    ANCESTOR = "it publishes the table as a partition, without its own WHERE clause"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one publication publishes a relation, at the level whose rules apply.

    Attributes:
        row_filter: its WHERE as SQL, or the reason for having none.
        columns: its column list in the table's order; None: none.
    """

    publication: str
    actions: tuple[Action, ...]
    row_filter: str | Unfiltered
    columns: tuple[str, ...] | None
    generated_columns: GeneratedColumns


@dataclass(frozen=True, slots=True)
class Resolution:
    """The rules that apply to one relation.

    Attributes:
        table: the relation whose changes the server sends.
        published_as: the same relation, or the ancestor under whose name its changes are published.
        published: the published actions.
        rules: the rules of the publications at the level that applies, in the subscription's order.
        columns: the column list, in the order of ``published_as``; None: there is none.
        generated_columns: whether stored generated columns are published without a list.
    """

    table: SourceTable
    published_as: SourceTable
    published: tuple[Action, ...]
    rules: tuple[Rule, ...]
    columns: tuple[str, ...] | None
    generated_columns: GeneratedColumns

    def filters(self, action: Action) -> tuple[str, ...]:
        """The filters for an action, to combine with OR, each once; empty: every row passes."""
        acting = (rule for rule in self.rules if action in rule.actions)
        return () if action == "truncate" else _filters(acting)

    def cancelled(self, action: Action) -> tuple[Rule, ...]:
        """The rules without a filter that cancel the filters of others for an action."""
        if action == "truncate":
            return ()
        acting = [rule for rule in self.rules if action in rule.actions]
        without = tuple(rule for rule in acting if isinstance(rule.row_filter, Unfiltered))
        return without if len(without) < len(acting) else ()

    @property
    def copy_filters(self) -> tuple[str, ...]:
        """The filters for an initial copy, to combine with OR.

        ``publish`` is ignored: even a publication that only publishes updates copies rows that were
        inserted before the subscription. As in PostgreSQL,
        src/backend/replication/logical/tablesync.c (fetch_remote_table_info).
        """
        return _filters(self.rules)

    @property
    def published_columns(self) -> tuple[str, ...]:
        """The names of the columns that are published of ``table``, in its order."""
        if self.columns is not None:
            return tuple(
                column.name for column in self.table.columns if column.name in self.columns
            )
        sent = ("", "s") if self.generated_columns == "stored" else ("",)
        return tuple(column.name for column in self.table.columns if column.generated in sent)


def _filters(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The filters of rules, each once; none if a rule has none."""
    filters = dict.fromkeys(rule.row_filter for rule in rules)
    texts = tuple(text for text in filters if isinstance(text, str))
    return texts if len(texts) == len(filters) else ()


def resolve(
    publications: Sequence[Publication], table: SourceTable, catalog: SourceCatalog
) -> Resolution | None:
    """Find the rules for a relation's changes.

    Args:
        table: the relation that the server sends: a table, a leaf partition, or a partitioned table
            if the server publishes it under its own name.

    Returns:
        None if no publication includes the relation.

    Raises:
        SqlRefused: the publications' column lists differ.
        TableError: the server sends the partitioned table, and one of the publications has
            rules for a partition.
    """
    published: set[Action] = set()
    level, published_as = 0, table
    deciding: list[Publication] = []
    for publication in publications:
        if table.is_partitioned:
            _no_rule_below(publication, table, catalog)
        target = _published_as(publication, table, catalog)
        if target is None:
            continue
        published.update(publication.publish)
        if level > target[0]:
            continue
        if level < target[0]:
            level, published_as, deciding = *target, []
        deciding.append(publication)
    if not deciding:
        return None
    rules = tuple(_rule(publication, published_as) for publication in deciding)
    generated = _generated_columns(rules, published_as)
    return Resolution(
        table=table,
        published_as=published_as,
        published=tuple(publication for publication in ACTIONS if publication in published),
        rules=rules,
        columns=_columns(rules, published_as, generated),
        generated_columns=generated,
    )


def has(publication: Publication, table: SourceTable) -> bool:
    """Whether a publication lists a relation or its schema."""
    return publication.table(table.oid) is not None or table.namespace in publication.schemas


def topmost_ancestor(
    publication: Publication, table: SourceTable, catalog: SourceCatalog
) -> tuple[int, SourceTable] | None:
    """The highest ancestor in a publication, and its distance (1: the parent)."""
    topmost = None
    for level, oid in enumerate(table.ancestors, start=1):
        ancestor = catalog.tables[oid]
        if has(publication, ancestor):
            topmost = level, ancestor
    return topmost


def _published_as(
    publication: Publication, table: SourceTable, catalog: SourceCatalog
) -> tuple[int, SourceTable] | None:
    """The level and relation under which one publication publishes a table; None: it does not."""
    via_root = publication.publish_via_partition_root
    if publication.all_tables:
        if not table.is_publishable:
            return None
        if via_root and table.ancestors:
            return len(table.ancestors), catalog.tables[table.ancestors[-1]]
        return 0, table
    ancestor = topmost_ancestor(publication, table, catalog)
    if ancestor is not None and via_root:
        return ancestor
    return (0, table) if ancestor is not None or has(publication, table) else None


def _rule(publication: Publication, published_as: SourceTable) -> Rule:
    named = publication.table(published_as.oid)
    row_filter: str | Unfiltered
    if publication.all_tables:
        row_filter = Unfiltered.ALL_TABLES
    elif published_as.namespace in publication.schemas:
        row_filter = Unfiltered.SCHEMA
    elif named is None:
        row_filter = Unfiltered.ANCESTOR
    else:
        row_filter = Unfiltered.NO_WHERE if named.where is None else named.where
    return Rule(
        publication=publication.name,
        actions=publication.publish,
        row_filter=row_filter,
        columns=None if named is None else named.columns,
        generated_columns=publication.publish_generated_columns,
    )


def _generated_columns(rules: Sequence[Rule], table: SourceTable) -> GeneratedColumns:
    if not any(column.generated for column in table.columns):
        return "none"
    settings = list(dict.fromkeys(rule.generated_columns for rule in rules if rule.columns is None))
    if len(settings) > 1:
        raise SqlRefused(
            "cannot use different values of publish_generated_columns for table "
            f'"{table.namespace}.{table.name}" in different publications'
        )
    return settings[0] if settings else "none"


def _columns(
    rules: Sequence[Rule], table: SourceTable, generated: GeneratedColumns
) -> tuple[str, ...] | None:
    """The common column list of all rules; None if none has a list."""
    if all(rule.columns is None for rule in rules):
        return None
    sent = ("", "s") if generated == "stored" else ("",)
    every = tuple(column.name for column in table.columns if column.generated in sent)
    lists = {every if rule.columns is None else rule.columns for rule in rules}
    if len(lists) > 1:
        raise SqlRefused(
            f'cannot use different column lists for table "{table.namespace}.{table.name}" '
            "in different publications"
        )
    return lists.pop()


def _no_rule_below(publication: Publication, table: SourceTable, catalog: SourceCatalog) -> None:
    """Refuse a publication whose rules for a partition differ from its partitioned table's."""
    whole = _published_as(publication, table, catalog)
    if whole is not None and publication.publish_via_partition_root:
        return  # the highest ancestor decides, so a partition's own rules never act
    for partition in catalog.below(table):
        named = publication.table(partition.oid)
        is_as_the_whole = named is None or (named.where is None and named.columns is None)
        if whole is not None and is_as_the_whole:
            continue
        if whole is None and not has(publication, partition):
            continue
        title = f"{table.namespace}.{table.name}"
        raise TableError(
            f'publication "{publication.name}" of the configuration publishes the partition '
            f'"{partition.name}", but the server sends changes of this partition as changes of '
            f'table "{table.name}"',
            hint="in the configuration's publication, set publish_via_partition_root = true and "
            "name the partitioned table; or set publish_via_partition_root = false in the server's "
            f"publication; then copy the table: {copy_again(title)}",
            table=title,
        )


def fingerprint(own: Resolution | None, server: Sequence[PublishedBy] = ()) -> str:
    """A stable text for the rules of a relation: if it changes, the table is copied again.

    It contains filters, columns and the relation whose rules apply (by OID, because a rename
    changes no row). ``publish`` is included only if it changes which filters apply to a published
    action.

    Args:
        own: the rules of pgsluice's own publications for the relation.
        server: how the server's publications publish it; empty: without filter or list.
    """
    parts: list[object] = [_own(own)]
    parts.append(sorted(_server_filters(server)))
    parts.append(sorted({by.columns for by in server if by.columns is not None}))
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _server_filters(server: Sequence[PublishedBy]) -> set[str]:
    """The server's filters; none if one of its publications has none."""
    filters = {by.row_filter for by in server}
    return {text for text in filters if text is not None} if None not in filters else set()


def _own(own: Resolution | None) -> object:
    if own is None:
        return None
    copied = sorted(own.copy_filters)
    others = {
        action: sorted(own.filters(action))
        for action in ACTIONS
        if action != "truncate" and action in own.published
        if sorted(own.filters(action)) != copied
    }
    return [own.published_as.oid, copied, others, own.columns, own.generated_columns]
