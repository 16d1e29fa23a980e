"""The publications that pgsluice makes when the source has none.

Two of them (``contracts.md`` §3): ``<name>`` for the tables with a usable replica identity,
``<name>_insert`` with ``publish = 'insert, truncate'`` for the others. Rules:

* Never FOR ALL TABLES, and never a table without identity where updates are published: the
  server would refuse the application's own updates.
* Both are made at once, even if empty: a publication made later than the slot can't be
  decoded from the slot's position.
* Only publications with our COMMENT are changed or dropped. One of the user's is used as is.
* A partitioned table is listed by its root from 13 on (its new partitions come by themselves),
  before by its leaves.
* What the role may not do is said as the SQL that someone else can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors, sql

from pgsluice.catalog.publications import OUR_COMMENT, PublicationInfo, publications_of
from pgsluice.catalog.server import flush_lsn
from pgsluice.catalog.tables import UserTable, user_tables
from pgsluice.errors import SourceRefused
from pgsluice.lsn import Lsn

Connection = psycopg.Connection[Any]

INSERT_SUFFIX = "_insert"
_LOCK_TIMEOUT = "10s"
_ATTEMPTS = 5  # tables come and go while we list them


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """What :func:`ensure_publications` found and did.

    Attributes:
        names: what START_REPLICATION should ask for.
        created: publications made now.
        used_as_is: publications of the user's.
        added, removed: (publication, schema.table) put into or taken out of ours; a table
            that changed its identity is in both.
        insert_only: tables whose updates and deletes can't be published: no replica identity.
        left: SQL that would bring ours in step and that our role may not run, or that did not
            get its lock in time; empty when all is in step.
        position: the flush LSN after the changes: what commits later is sent by them.
    """

    names: tuple[str, ...]
    created: tuple[str, ...]
    used_as_is: tuple[str, ...]
    added: tuple[tuple[str, str], ...]
    removed: tuple[tuple[str, str], ...]
    insert_only: tuple[str, ...]
    left: tuple[str, ...]
    position: Lsn


@dataclass(slots=True)
class _Plan:
    """What is to be done, as SQL with its reason."""

    names: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    used_as_is: list[str] = field(default_factory=list)
    added: list[tuple[str, str]] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)
    insert_only: set[str] = field(default_factory=set)
    left: list[sql.Composed] = field(default_factory=list)
    statements: list[sql.Composed] = field(default_factory=list)


def ensure_publications(connection: Connection, names: Sequence[str]) -> PublicationReport:
    """Make the publications that are missing, and keep ours in step with the tables.

    To be called before the slot is made, and then by polling. One transaction; nothing is
    written when all is in step.

    Args:
        connection: in autocommit mode, not inside a transaction.
        names: of ``[source] publications``.

    Raises:
        SourceRefused: one is missing and can't be made: the hint is the exact SQL to run. Or
            a publication of the user's has the name of our second one.
    """
    for attempt in range(_ATTEMPTS):
        plan = _plan(connection, names)
        try:
            _carry_out(connection, plan)
            return _report(connection, plan)
        except (errors.UndefinedTable, errors.DuplicateObject, errors.UndefinedObject):
            # A table was dropped, or another process did the same, since we looked.
            if attempt == _ATTEMPTS - 1:
                raise
        except (
            errors.InsufficientPrivilege,
            errors.ReadOnlySqlTransaction,
            errors.LockNotAvailable,
        ) as error:
            if plan.created:
                raise _refuse(connection, plan, error) from error
            plan.left += plan.statements
            plan.added, plan.removed, plan.statements = [], [], []
            return _report(connection, plan)
    raise AssertionError("unreachable")


def drop_publications(connection: Connection, names: Sequence[str]) -> tuple[str, ...]:
    """Drop those publications, and their seconds, that we made.

    Returns:
        the names dropped; the user's own are never among them.
    """
    wanted = [*names, *(name + INSERT_SUFFIX for name in names)]
    ours = [one.name for one in publications_of(connection, wanted).values() if one.is_ours]
    if ours:
        listed = sql.SQL(", ").join(map(sql.Identifier, ours))
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(listed))
    return tuple(ours)


def _plan(connection: Connection, names: Sequence[str]) -> _Plan:
    plan = _Plan()
    wanted = [*names, *(name + INSERT_SUFFIX for name in names)]
    existing = publications_of(connection, wanted)
    tables: list[UserTable] | None = None
    seconds = {name + INSERT_SUFFIX for name in names}
    for name in names:
        if name in seconds and (name not in existing or existing[name].is_ours):
            continue  # comes with its first
        first, second = existing.get(name), existing.get(name + INSERT_SUFFIX)
        plan.names.append(name)
        if first is not None and not first.is_ours:
            plan.used_as_is.append(name)
            continue
        if second is not None and not second.is_ours:
            raise SourceRefused(
                f"publication {second.name!r} is not ours, and {name!r} needs one of that name",
                hint="rename it, or choose another name in [source] publications",
            )
        if tables is None:
            tables = _publishable(connection)
        _plan_pair(connection, plan, name, (first, second), tables)
    return plan


def _plan_pair(
    connection: Connection,
    plan: _Plan,
    name: str,
    pair: tuple[PublicationInfo | None, PublicationInfo | None],
    tables: list[UserTable],
) -> None:
    """Plan ``name`` and its second: drops before adds, so that a table can move."""
    plan.names.append(name + INSERT_SUFFIX)
    full = [table for table in tables if table.has_identity]
    insert_only = [table for table in tables if not table.has_identity]
    plan.insert_only.update(_display(table) for table in insert_only)
    version = connection.info.server_version
    both = zip((name, name + INSERT_SUFFIX), pair, (full, insert_only), strict=True)
    adds: list[tuple[str, list[UserTable]]] = []
    for publication, info, members in both:
        if info is None:
            plan.created.append(publication)
            plan.added += [(publication, _display(table)) for table in members]
            actions = None if publication == name else _insert_actions(version)
            plan.statements += _create(publication, members, actions)
            continue
        there = _members(connection, info.oid)
        wanted = {table.oid: table for table in members}
        for oid, (display, table_name) in there.items():
            if oid not in wanted:
                plan.removed.append((publication, display))
                plan.statements.append(_alter(publication, "DROP", [table_name]))
        adds.append((publication, [table for oid, table in wanted.items() if oid not in there]))
    for publication, missing in adds:
        for table in missing:
            statement = _alter(publication, "ADD", [_table_name(table)])
            if table.may_publish:
                plan.added.append((publication, _display(table)))
                plan.statements.append(statement)
            else:
                plan.left.append(statement)


def _publishable(connection: Connection) -> list[UserTable]:
    """Each table once: plain ones, and of partitioned ones what this version can list."""
    tables = user_tables(connection)
    if connection.info.server_version >= 130000:
        return [table for table in tables if not table.is_partition]
    return [table for table in tables if table.kind == "r"]


_MEMBERS = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prpubid = %s
"""


def _members(connection: Connection, publication_oid: int) -> dict[int, tuple[str, sql.Composed]]:
    rows = connection.execute(_MEMBERS, [publication_oid]).fetchall()
    return {
        int(oid): (f"{namespace}.{name}", _qualified(namespace, name, kind))
        for oid, namespace, name, kind in rows
    }


def _insert_actions(version: int) -> str:
    """What the second one publishes; TRUNCATE is not on the wire before 11."""
    return "insert, truncate" if version >= 110000 else "insert"


def _create(name: str, members: list[UserTable], actions: str | None) -> list[sql.Composed]:
    """CREATE PUBLICATION and its COMMENT; ``actions`` None: the default, all of them."""
    publication = sql.Identifier(name)
    create = sql.SQL("CREATE PUBLICATION {}").format(publication)
    if members:
        create += sql.SQL(" FOR TABLE {}").format(
            sql.SQL(", ").join(_table_name(table) for table in members)
        )
    if actions is not None:
        create += sql.SQL(" WITH (publish = {})").format(sql.Literal(actions))
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        publication, sql.Literal(OUR_COMMENT)
    )
    return [create, comment]


def _alter(publication: str, verb: str, tables: list[sql.Composed]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
        sql.Identifier(publication), sql.SQL(verb), sql.SQL(", ").join(tables)
    )


def _table_name(table: UserTable) -> sql.Composed:
    return _qualified(table.namespace, table.name, table.kind)


def _qualified(namespace: str, name: str, kind: str) -> sql.Composed:
    # ONLY: inheritance children are listed by themselves, each with its own identity.
    only = sql.SQL("ONLY " if kind == "r" else "")
    return sql.SQL("{}{}").format(only, sql.Identifier(namespace, name))


def _display(table: UserTable) -> str:
    return f"{table.namespace}.{table.name}"


def _carry_out(connection: Connection, plan: _Plan) -> None:
    if not plan.statements:
        return
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        # Flushed when committed, so that the flush LSN below is past it.
        connection.execute("SET LOCAL synchronous_commit = local")
        for statement in plan.statements:
            connection.execute(statement)


def _report(connection: Connection, plan: _Plan) -> PublicationReport:
    return PublicationReport(
        names=tuple(plan.names),
        created=tuple(plan.created),
        used_as_is=tuple(plan.used_as_is),
        added=tuple(plan.added),
        removed=tuple(plan.removed),
        insert_only=tuple(sorted(plan.insert_only)),
        left=_as_text(connection, plan.left),
        position=flush_lsn(connection),
    )


def _refuse(connection: Connection, plan: _Plan, error: psycopg.Error) -> SourceRefused:
    statements = "\n".join(f"{one};" for one in _as_text(connection, plan.statements))
    why = error.diag.message_primary or type(error).__name__
    return SourceRefused(
        f"publication {plan.created[0]!r} is missing and cannot be made by this role: {why}",
        hint="have these statements run by who may (the tables' owner with CREATE on the "
        f"database, or a superuser):\n{statements}",
        sqlstate=error.sqlstate,
    )


def _as_text(connection: Connection, statements: Iterable[sql.Composed]) -> tuple[str, ...]:
    return tuple(statement.as_string(connection) for statement in statements)
