"""The publications that pgsluice creates and maintains on the server if the source has none.

There are two ("contracts: publishing"): ``<name>`` for the tables with a usable replica identity,
and ``<name>_insert`` with ``publish = 'insert, truncate'`` for the others. Rules:

* Never FOR ALL TABLES, and never a table without replica identity in a publication that publishes
  updates: the server would refuse the application's own updates.
* Both are created at once, even if empty: the slot's position has to be later than the creation
  of a publication that is decoded from there.
* Only publications with our COMMENT are altered or dropped. A user's publication is used as it is.
* Missing publications are created before the first start. Later only those are recreated that
pgsluice had created: a user may rename a publication for a moment, and a new one under its name
would send other tables.
* From 13 on the root of a partitioned table is listed, and new partitions are published without
  a change; before 13 its leaves are listed.
* From 18 on they send stored generated columns if pgsluice's own publications publish some. This is
never undone, because another configuration may rely on it.
* Those of streams have only the tables that a stream has asked for, which their COMMENT lists, so
that every capture keeps them. All streams of a slot share them, because capture requests a slot's
publications once. A stream of all tables removes the list. A table is never taken from it: another
stream may read it.
* Captures, streams and commands change them at the same time. What changes is decided under an
advisory lock: a list read before another process added its table would remove that table.
* If the role lacks a privilege, the message has the SQL that a role with the privilege has to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg import errors

from pgsluice.catalog import Connection
from pgsluice.catalog.publications.publications import (
    SENDS_GENERATED,
    PublicationInfo,
    TableName,
    alter,
    create_statements,
    drop_statement,
    publications_of,
    set_comment,
    table_name,
)
from pgsluice.catalog.rights import grants, table_rights
from pgsluice.catalog.server import insert_lsn, server_info
from pgsluice.catalog.tables.tables import UserTable, user_tables
from pgsluice.errors import SourceRefused
from pgsluice.lsn import Lsn

INSERT_SUFFIX = "_insert"
_INSERTS = "insert, truncate"  # TRUNCATE is published since 11
_LOCK = 0x7067736C75696365  # "pgsluice"
_ATTEMPTS = 5  # tables are created and dropped between our queries


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """The result of :func:`ensure_publications`.

    Attributes:
        names: the publications that START_REPLICATION should name.
        missing: the user's publications that do not exist now.
        left: statements that our publications still need, but that our role lacks the privilege to
            run, or that did not get a lock in time.
        position: the end of the WAL after the changes, flushed or not, since the server shows
            commits before it flushes them (synchronous_commit = off). Later commits are published
            by the new definitions.
    """

    names: tuple[str, ...]
    created: tuple[str, ...]
    missing: tuple[str, ...]
    left: tuple[str, ...]
    position: Lsn

    @property
    def problem(self) -> str | None:
        """A sentence about missing publications; None if there are none."""
        if not self.missing:
            return None
        listed = ", ".join(map(repr, self.missing))
        does = "do" if len(self.missing) > 1 else "does"
        return (
            f"{listed} of [source] publications {does} not exist on the server: create or rename "
            "a publication, or correct the configuration"
        )


@dataclass(slots=True)
class _Plan:
    """The statements to run, and the report on them.

    Attributes:
        new: the tables that are not in our publications yet.
    """

    names: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    sends_generated: bool = False
    new: list[int] = field(default_factory=list)


def ensure_publications(
    connection: Connection,
    names: Sequence[str],
    requested: Collection[str] | None = None,
    generated_columns: Collection[str] | None = (),
    asked: Collection[TableName] | None = (),
    lock_timeout_s: float = 10.0,
) -> PublicationReport:
    """Create missing publications, and update ours to the tables that exist now.

    Called before the slot is created, and then at intervals. Runs one transaction, and none when
    nothing has changed.

    Args:
        connection: in autocommit mode, not inside a transaction.
        names: the value of ``[source] publications``.
        requested: the publications of the last replication request; None before the first start. Of
            the missing ones, only managed publications are created again.
        generated_columns: names of columns that the managed publications have to send even if they
            are generated (18+, stored ones); None: all of them.
        asked: the tables that a stream asks for; None: it asks for all tables; empty: no stream
            asks, and missing publications are created for all tables.
        lock_timeout_s: how long a statement waits for a lock.

    Raises:
        SourceRefused: a publication is missing and cannot be created (the hint has the SQL to
            run), or a user's publication has the name of our second one.
    """
    for attempt in range(_ATTEMPTS):
        plan = _plan(connection, names, requested, generated_columns, asked)
        try:
            if plan.statements:
                with _exclusive(connection, lock_timeout_s):
                    plan = _plan(connection, names, requested, generated_columns, asked)
                    for statement in plan.statements:
                        connection.execute(statement.encode())
            return _report(connection, plan)
        except (
            errors.UndefinedTable,
            errors.DuplicateObject,
            errors.UndefinedObject,
            errors.UniqueViolation,
        ):
            # A table was dropped, or a user did the same, since our query.
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
            plan.statements = []
            return _report(connection, plan)
    raise AssertionError("unreachable")


def statements_for_others(
    connection: Connection, names: Sequence[str], requested: Collection[str] | None = None
) -> tuple[str, ...]:
    """The statements that the managed publications still need, but that our role lacks the
    privilege to run.

    These are the statements for tables of other owners, and all statements for a managed
    publication that another role owns. They also have the GRANTs that copies of those tables need,
    so that the owner is asked only once. Nothing is changed.

    Raises:
        SourceRefused: as :func:`ensure_publications`.
    """
    plan = _plan(connection, names, requested, generated_columns=())
    theirs = any(not publication.may_alter for publication in our_publications(connection, names))
    left = [*(plan.statements if theirs else ()), *plan.left]
    rights = table_rights(connection, plan.new).values() if left else ()
    lacking = [each for each in rights if not (each.may_read and each.sees_all_rows)]
    return (*left, *(statement.removesuffix(";") for statement in grants(lacking)))


def our_publications(connection: Connection, names: Sequence[str]) -> tuple[PublicationInfo, ...]:
    """The publications that pgsluice created for these names; never a user's."""
    wanted = [*names, *(name + INSERT_SUFFIX for name in names)]
    known = publications_of(connection, wanted).values()
    return tuple(publication for publication in known if publication.is_ours)


def drop_publications(connection: Connection, names: Sequence[str]) -> tuple[str, ...]:
    """Drop the publications that pgsluice created for these names and that our role owns.

    Returns:
        the dropped publications.
    """
    ours = tuple(info.name for info in our_publications(connection, names) if info.may_alter)
    if ours:
        connection.execute(drop_statement(ours).encode())
    return ours


def _plan(
    connection: Connection,
    names: Sequence[str],
    requested: Collection[str] | None,
    generated_columns: Collection[str] | None,
    asked: Collection[TableName] | None = (),
) -> _Plan:
    plan = _Plan(sends_generated=_sends_generated(connection, generated_columns))
    wanted = [*names, *(name + INSERT_SUFFIX for name in names)]
    existing = publications_of(connection, wanted)
    tables: list[UserTable] | None = None
    seconds = {name + INSERT_SUFFIX for name in names}

    def is_ours(name: str) -> bool:
        if name in existing:
            return existing[name].is_ours
        # Ours have a second one, which the configuration does not name.
        return requested is None or name + INSERT_SUFFIX in {*requested} - {*names}

    for name in names:
        first, second = existing.get(name), existing.get(name + INSERT_SUFFIX)
        is_second = name in seconds
        if is_second and is_ours(name.removesuffix(INSERT_SUFFIX)) and is_ours(name):
            continue  # handled with its first publication
        plan.names.append(name)
        if first is not None and (is_second or not first.is_ours):
            continue
        if not is_ours(name):
            plan.missing.append(name)
            continue
        if second is not None and not second.is_ours:
            taken = second.name
            raise SourceRefused(
                f"publication {taken!r} was not created by pgsluice, but pgsluice creates a "
                f"publication of this name together with publication {name!r}",
                hint=f"rename publication {taken!r} on the server (ALTER PUBLICATION … RENAME TO "
                f"…), or replace {name!r} by another name in [source] publications",
            )
        if tables is None:
            tables = publishable_tables(connection)
        _plan_pair(connection, plan, name, (first, second), tables, asked)
    return plan


def _plan_pair(
    connection: Connection,
    plan: _Plan,
    name: str,
    pair: tuple[PublicationInfo | None, PublicationInfo | None],
    tables: list[UserTable],
    asked: Collection[TableName] | None,
) -> None:
    """Plan ``name`` and its second publication; drops come first, so that a table can move."""
    plan.names.append(name + INSERT_SUFFIX)
    known = pair[0] or pair[1]
    only = frozenset(asked) if asked else None
    if known is not None and only is not None:
        only = None if known.only is None else known.only | only
    elif known is not None and asked is not None:
        only = known.only
    plan.statements += [
        set_comment(info.name, only) for info in pair if info is not None and info.only != only
    ]
    if only is not None:
        tables = [table for table in tables if table.root in only]
    full = [table for table in tables if table.has_identity]
    insert_only = [table for table in tables if not table.has_identity]
    version = connection.info.server_version
    both = zip((name, name + INSERT_SUFFIX), pair, (full, insert_only), strict=True)
    adds: list[tuple[str, list[UserTable]]] = []
    for publication, info, members in both:
        if info is None:
            plan.created.append(publication)
            options = [SENDS_GENERATED] if plan.sends_generated else []
            if publication != name:
                options.append(f"publish = '{_INSERTS if version >= 110000 else 'insert'}'")
            names = [table_name(table.namespace, table.name, table.kind) for table in members]
            plan.statements += create_statements(publication, names, options, only)
            continue
        if plan.sends_generated and info.generated_columns != "stored":
            plan.statements.append(alter(publication, f"SET ({SENDS_GENERATED})"))
        there = _members(connection, info.oid)
        wanted = {table.oid: table for table in members}
        for oid, member in there.items():
            if oid not in wanted:
                plan.statements.append(alter(publication, f"DROP TABLE {member}"))
        adds.append((publication, [table for oid, table in wanted.items() if oid not in there]))
    for publication, missing in adds:
        plan.new += [table.oid for table in missing]
        for table in missing:
            added = table_name(table.namespace, table.name, table.kind)
            statement = alter(publication, f"ADD TABLE {added}")
            (plan.statements if table.may_publish else plan.left).append(statement)


def publishable_tables(connection: Connection) -> list[UserTable]:
    """The tables that the managed publications list: plain tables, and partition roots (13+) or
    leaf partitions."""
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


def _members(connection: Connection, publication_oid: int) -> dict[int, str]:
    rows = connection.execute(_MEMBERS, [publication_oid]).fetchall()
    return {int(oid): table_name(*names) for oid, *names in rows}


_STORED_COLUMNS = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a
    WHERE a.attgenerated = 's' AND a.attrelid >= 16384 AND a.attname = ANY (%s::text[]))
"""


def _sends_generated(connection: Connection, columns: Collection[str] | None) -> bool:
    """Whether the managed publications have to send stored generated columns (18+)."""
    if connection.info.server_version < 180000:
        return False
    if columns is None:
        return True
    if not columns:
        return False
    ((is_needed,),) = connection.execute(_STORED_COLUMNS, [list(columns)]).fetchall()
    return bool(is_needed)


@contextmanager
def _exclusive(connection: Connection, timeout_s: float) -> Iterator[None]:
    """A transaction that changes publications, beside none of another process."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{timeout_s * 1000:.0f}ms'")
        # It need not wait for a synchronous standby.
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [_LOCK])
        yield


def _report(connection: Connection, plan: _Plan) -> PublicationReport:
    return PublicationReport(
        names=tuple(plan.names),
        created=tuple(plan.created),
        missing=tuple(plan.missing),
        left=tuple(plan.left),
        position=insert_lsn(connection),
    )


def _refuse(connection: Connection, plan: _Plan, error: psycopg.Error) -> SourceRefused:
    statements = "\n".join(f"{statement};" for statement in plan.statements)
    why = error.diag.message_primary or type(error).__name__
    return SourceRefused(
        f"publication {plan.created[0]!r} is missing and this role cannot create it: {why}",
        hint=f"{_who_can(connection, error)}:\n{statements}",
        sqlstate=error.sqlstate,
    )


def _who_can(connection: Connection, error: psycopg.Error) -> str:
    """Who can create publications if our session cannot."""
    if isinstance(error, errors.ReadOnlySqlTransaction):
        server = server_info(connection)
        if server.is_standby:
            return "the server is a standby: run these statements on its primary"
        return f"let the role write ({server.writable_sql}), or run these statements as another"
    return (
        "ask a role with the privileges (the tables' owner with CREATE on the database, or a "
        "superuser) to run these statements"
    )


_STREAM_SUFFIX = "_stream"
_LONGEST = 63 - len(_STREAM_SUFFIX + INSERT_SUFFIX)


def stream_publication(slot: str) -> str:
    """The name of the first publication of a slot's streams."""
    if len(slot) > _LONGEST:
        slot = slot[: _LONGEST - 9] + "_" + hashlib.sha256(slot.encode()).hexdigest()[:8]
    return slot + _STREAM_SUFFIX


def publish_for_stream(
    connection: Connection, name: str, table: TableName | None
) -> tuple[str, ...]:
    """Have a stream's table published, before its capture or its start.

    Args:
        connection: in autocommit mode, not inside a transaction.
        name: from :func:`stream_publication`.
        table: schema and name; None: all tables.

    Returns:
        the statements that a stream of all tables lacks, for tables that our role does not own.

    Raises:
        SourceRefused: as :func:`ensure_publications`, and if the table cannot be published now.
    """
    tables = user_tables(connection)
    asked: Collection[TableName] | None = None
    if table is not None:
        asked = {each.root for each in tables if (each.namespace, each.name) == table} or {table}
    report = ensure_publications(connection, [name], asked=asked)
    if asked is None:
        others = _names_of(each for each in tables if not each.may_publish)
        left = [statement for statement in report.left if not statement.endswith(others)]
    else:
        added = _names_of(each for each in tables if each.root in asked)
        left = [statement for statement in report.left if statement.endswith(added)]
    if left:
        what = "not every table is" if table is None else f"table {'.'.join(table)} is not"
        statements = "\n".join(f"{statement};" for statement in left)
        raise SourceRefused(
            f"{what} published yet: this role lacks the privilege, another session holds a lock "
            "on the table, or the server is a standby",
            hint="start the query again when no session locks the table; or ask the table's owner "
            f"to run these statements first, on the primary:\n{statements}",
        )
    return report.left if table is None else ()


def _names_of(tables: Iterable[UserTable]) -> tuple[str, ...]:
    return tuple(table_name(each.namespace, each.name, each.kind) for each in tables)
