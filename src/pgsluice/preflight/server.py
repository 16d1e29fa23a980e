"""Checks of the server: connection, version, settings and our role."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.capture.source.slot import pgoutput_options
from pgsluice.config import mask_dsn
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
    yield ok("source", f"connected as {facts.server.user}: {mask_dsn(facts.config.source.dsn)}")
    if facts.is_behind_pooler:
        yield warning(
            "connection",
            "pgsluice is not connected to the server itself, but to a program in between, such as "
            "a connection pooler",
            "set dsn in [source] to the server itself: replication needs a direct connection",
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
            f"the server's wal_level is {facts.server.wal_level}, but logical replication needs "
            "wal_level = logical",
            "ALTER SYSTEM SET wal_level = logical;  -- then restart the server",
        )


def check_standbys(facts: SourceFacts) -> Iterator[Finding]:
    """Whether commits at the source would wait for pgsluice."""
    if facts.is_awaited:
        yield warning(
            "synchronous_standby_names",
            "the server treats pgsluice as a synchronous standby: each commit waits until pgsluice "
            "acknowledges it. Until then the catalog does not show a partition that the waiting "
            "transaction created, so pgsluice may not apply the rows that it inserted there",
            "set synchronous_standby_names to the application_name of each standby, not to '*'",
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
    """A finding about a limit of which the stream needs ``needed``, and a copy one more."""
    if free > needed:
        return ok(setting, f"{limit}, {free} of them free")
    sql = f"ALTER SYSTEM SET {setting} = {limit + needed + 1 - free};  -- then restart the server"
    if free == needed:
        what = f"the server's {setting} is {limit}, and copying a table again needs one more {noun}"
        return warning(setting, what, sql)
    what = f"all {limit} of the server's {setting} are in use, and pgsluice needs one more {noun}"
    return error(setting, what, sql)


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
                f"{limit.name} allows {limit.limit} connections, and {limit.used} of them are in "
                f"use: `pgsluice run` opens up to {needed}, most of them while it copies tables",
                f"lower copy_workers, or {before}{limit.used + needed}{after}",
            )


def check_limits(facts: SourceFacts) -> Iterator[Finding]:
    """Settings that end the connection early, lose the slot, or let it fill the disk."""
    if 0 < facts.wal_sender_timeout_ms < _SHORT_TIMEOUT_MS:
        yield warning(
            "wal_sender_timeout",
            f"the server's wal_sender_timeout is {facts.wal_sender_timeout_ms} ms: the server ends "
            "the connection after a short pause of pgsluice",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    limit = facts.server.max_slot_wal_keep_bytes
    if facts.server.version_num >= 130000 and limit is None:
        yield warning(
            "max_slot_wal_keep_size",
            "the server has no limit for the WAL of a slot: while pgsluice is down, its slot keeps "
            "WAL until the server's disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            "  -- as much as the disk can spare",
        )
    elif limit is not None and limit < _LOW_WAL_BYTES:
        yield warning(
            "max_slot_wal_keep_size",
            f"the server keeps at most {format_bytes(limit)} of WAL for a slot: after a short stop "
            "of pgsluice, the slot may be lost",
            "raise max_slot_wal_keep_size to as much as the server's disk can spare",
        )
    idle_s = facts.server.idle_slot_timeout_s
    if idle_s is not None and idle_s < _SHORT_IDLE_S:
        yield warning(
            "idle_replication_slot_timeout",
            f"the server drops a slot that nobody uses for {format_seconds(idle_s)}: after a "
            "longer stop of pgsluice, all tables need a new copy",
            "raise idle_replication_slot_timeout to several days, or set it to 0 for no limit",
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
            f"role {user} does not have the REPLICATION attribute",
            f"ALTER ROLE {quote_identifier(user)} REPLICATION;",
        )
    elif problem is not None:
        yield error(
            "role",
            f"the server refused a replication connection: {problem}",
            f"add a line for role {user} and the address of this machine to pg_hba.conf; if a "
            "connection pooler is in between, set dsn in [source] to the server itself",
        )
    else:
        yield ok("role", f"{user} may replicate")
