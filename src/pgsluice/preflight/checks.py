"""The list of all checks, in the order in which ``pgsluice check`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.preflight import local, publications, server, slot, tables
from pgsluice.preflight.facts import LocalFacts, SourceFacts
from pgsluice.preflight.findings import Finding, error
from pgsluice.preflight.gathering.local import gather_local, gather_spool
from pgsluice.preflight.gathering.source import gather_source

SOURCE_CHECKS: tuple[Callable[[SourceFacts], Iterator[Finding]], ...] = (
    server.check_connection,
    server.check_version,
    server.check_wal_level,
    server.check_standbys,
    server.check_slots_and_walsenders,
    server.check_connections,
    server.check_limits,
    server.check_options,
    server.check_role,
    slot.check_slot,
    slot.check_failover,
    slot.check_timeline,
    publications.check_publications,
    publications.check_column_lists,
    publications.check_generated_columns,
    tables.check_privileges,
    tables.check_row_security,
    tables.check_replica_identity,
    tables.check_keys,
    tables.check_column_names,
    tables.check_table_names,
    tables.check_configured_names,
    tables.check_targets_of_tables,
    publications.check_binary,
    publications.check_messages,
    publications.check_own_publications,
)
"""Checks that need a connection to the server."""

LOCAL_CHECKS: tuple[Callable[[LocalFacts], Iterator[Finding]], ...] = (
    local.check_spool,
    local.check_capture,
    local.check_targets,
    local.check_catalog,
    local.check_copy_cores,
    local.check_variants,
    local.check_incomplete_targets,
    local.check_failing_tables,
    local.check_monitor,
    local.check_environment,
)
"""Checks that always run."""


def run_checks(config: Config) -> Iterator[Finding]:
    """Gather the facts and run every check; yields findings as they are made."""
    spool = gather_spool(config.spool.place)
    system = None
    try:
        source = gather_source(config, spool)
    except PgsluiceError as problem:
        yield error("source", problem.what, problem.hint)
    else:
        if source.slot is not None:  # capture may have moved both on, the spool first
            spool = gather_spool(config.spool.place)
            source = replace(source, spool=spool)
        system = source.replication.identity
        for source_check in SOURCE_CHECKS:
            yield from source_check(source)
    machine = gather_local(config, spool, system)
    for local_check in LOCAL_CHECKS:
        yield from local_check(machine)
