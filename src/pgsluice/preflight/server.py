"""Checks of the server: connection, version, settings and our role."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.capture.source.slot import pgoutput_options
from pgsluice.errors import SourceRefused
from pgsluice.monitor.wording import format_bytes, format_seconds
from pgsluice.preflight.facts import SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.sql import quote_identifier

_LOW_WAL_BYTES = 2**30
_SHORT_TIMEOUT_MS = 10_000
_SHORT_IDLE_S = 24 * 3600.0
_OTHER_CONNECTIONS = 4
"""The connections of a run in addition to its copies: to receive, to hold a snapshot, to refresh
the catalog, to create a slot."""


def check_connection(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the server itself answers, and not a connection pooler."""
    yield ok("source", f"connected as {facts.server.user}: {facts.config.source.shown_dsn}")
    if facts.is_behind_pooler:
        yield warning(
            "connection",
            "something between this machine and the server, such as a connection pooler, "
            "answers for the server",
            "connect to the server directly: replication needs its own connection",
        )


def check_version(facts: SourceFacts) -> Iterator[Finding]:
    """The server's version, for information."""
    yield ok("version", f"PostgreSQL {facts.server.version}, database {facts.server.database}")


def check_wal_level(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the WAL has the information for logical decoding."""
    if facts.server.wal_level == "logical":
        yield ok("wal_level", "logical")
    else:
        yield error(
            "wal_level",
            f"{facts.server.wal_level}: logical replication needs logical",
            "ALTER SYSTEM SET wal_level = logical;  -- then restart the server",
        )


def check_standbys(facts: SourceFacts) -> Iterator[Finding]:
    """Whether commits at the source would wait for pgsluice."""
    if facts.is_awaited:
        yield warning(
            "synchronous_standby_names",
            "the server takes pgsluice for a synchronous standby: commits wait for it, and rows of "
            "a partition that is made in a transaction that waits may be missing",
            "name the standbys by their application_name in synchronous_standby_names, not '*'",
        )


def check_slots_and_walsenders(facts: SourceFacts) -> Iterator[Finding]:
    """Whether a slot and a walsender are free for the stream, and one more for copies."""
    server = facts.server
    free = server.max_replication_slots - server.used_replication_slots
    # The first run creates our slot; a copy takes a temporary one beside it.
    needed = 1 if facts.slot is None else 0
    yield _capacity("max_replication_slots", server.max_replication_slots, free, needed, "slot")
    free = server.max_wal_senders - server.used_wal_senders
    yield _capacity("max_wal_senders", server.max_wal_senders, free, 1, "walsender")


def _capacity(setting: str, limit: int, free: int, needed: int, noun: str) -> Finding:
    """A finding about a limit of which ``needed`` are used by the stream, and one more by a
    copy."""
    if free > needed:
        return ok(setting, f"{limit}, {free} of them free")
    sql = f"ALTER SYSTEM SET {setting} = {limit + needed + 1 - free};  -- then restart the server"
    if free == needed:
        return warning(setting, f"{limit}: copying a table again needs one more {noun}", sql)
    return error(setting, f"all {limit} are in use, and a {noun} is needed", sql)


def check_connections(facts: SourceFacts) -> Iterator[Finding]:
    """Whether copies can have as many connections as configured.

    All copies of a run together use the largest limit of its subscriptions.
    """
    subscriptions = [each for each in facts.config.subscriptions if each.enabled]
    needed = _OTHER_CONNECTIONS + max((each.copy_workers for each in subscriptions), default=0)
    for limit in facts.connection_limits:
        if limit.used + needed > limit.limit:
            before, _, after = limit.raise_by.rpartition("{}")
            yield warning(
                "connections",
                f"{limit.name} allows {limit.limit}, {limit.used} of them in use: a run has up to "
                f"{needed}, most of them while it copies tables",
                f"set copy_workers lower, or {before}{limit.used + needed}{after}",
            )


def check_limits(facts: SourceFacts) -> Iterator[Finding]:
    """Settings that end the connection early, lose the slot, or let it fill the disk."""
    if 0 < facts.wal_sender_timeout_ms < _SHORT_TIMEOUT_MS:
        yield warning(
            "wal_sender_timeout",
            f"{facts.wal_sender_timeout_ms} ms: a short pause of pgsluice ends the connection",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    limit = facts.server.max_slot_wal_keep_bytes
    if facts.server.version_num >= 130000 and limit is None:
        yield warning(
            "max_slot_wal_keep_size",
            "no limit: while pgsluice is down, its slot keeps WAL until the server's disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            "  -- as much as the disk can spare",
        )
    elif limit is not None and limit < _LOW_WAL_BYTES:
        yield warning(
            "max_slot_wal_keep_size",
            f"{format_bytes(limit)}: the slot may be lost after a short stop of pgsluice",
            "raise it to as much as the disk can spare",
        )
    idle_s = facts.server.idle_slot_timeout_s
    if idle_s is not None and idle_s < _SHORT_IDLE_S:
        yield warning(
            "idle_replication_slot_timeout",
            f"{format_seconds(idle_s)}: the slot is lost after a longer stop of pgsluice, and all "
            "tables need a new copy",
            "raise it to several days, or 0 for no limit",
        )


def check_options(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the server supports the options in ``[source]``."""
    source = facts.config.source
    try:
        pgoutput_options(source, source.publications, facts.server.version_num)
    except SourceRefused as refusal:
        yield error("options", refusal.what, refusal.hint or "leave the setting out of [source]")


def check_role(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the role may replicate, and pg_hba.conf lets it."""
    user, problem = facts.server.user, facts.replication.problem
    if not facts.server.has_replication:
        yield error(
            "role",
            f"{user} may not replicate",
            f"ALTER ROLE {quote_identifier(user)} REPLICATION;",
        )
    elif problem is not None:
        yield error(
            "role",
            f"a replication connection was refused: {problem}",
            f"add a line for {user} and this address to pg_hba.conf, and connect to the server "
            "directly if a connection pooler is in between",
        )
    else:
        yield ok("role", f"{user} may replicate")
