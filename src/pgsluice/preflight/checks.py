"""The list of all checks, in the order in which ``pgsluice check`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pgsluice.config import Config
from pgsluice.errors import PgsluiceError
from pgsluice.preflight.binary import check_binary
from pgsluice.preflight.facts import LocalFacts, SourceFacts
from pgsluice.preflight.findings import Finding, error
from pgsluice.preflight.gathering.local import gather_local, gather_spool
from pgsluice.preflight.gathering.source import gather_source
from pgsluice.preflight.local import (
    check_capture,
    check_catalog,
    check_copy_cores,
    check_environment,
    check_failing_tables,
    check_incomplete_targets,
    check_monitor,
    check_spool,
    check_targets,
    check_variants,
)
from pgsluice.preflight.own_publications import check_own_publications
from pgsluice.preflight.publications import (
    check_column_lists,
    check_generated_columns,
    check_messages,
    check_publications,
)
from pgsluice.preflight.server import (
    check_connection,
    check_connections,
    check_limits,
    check_options,
    check_role,
    check_slots_and_walsenders,
    check_standbys,
    check_version,
    check_wal_level,
)
from pgsluice.preflight.slot import check_failover, check_slot, check_timeline
from pgsluice.preflight.tables import (
    check_column_names,
    check_configured_names,
    check_keys,
    check_privileges,
    check_replica_identity,
    check_row_security,
    check_table_names,
    check_targets_of_tables,
)

SOURCE_CHECKS: tuple[Callable[[SourceFacts], Iterator[Finding]], ...] = (
    check_connection,
    check_version,
    check_wal_level,
    check_standbys,
    check_slots_and_walsenders,
    check_connections,
    check_limits,
    check_options,
    check_role,
    check_slot,
    check_failover,
    check_timeline,
    check_publications,
    check_column_lists,
    check_generated_columns,
    check_privileges,
    check_row_security,
    check_replica_identity,
    check_keys,
    check_column_names,
    check_table_names,
    check_configured_names,
    check_targets_of_tables,
    check_binary,
    check_messages,
    check_own_publications,
)
"""Checks that need a connection to the server."""

LOCAL_CHECKS: tuple[Callable[[LocalFacts], Iterator[Finding]], ...] = (
    check_spool,
    check_capture,
    check_targets,
    check_catalog,
    check_copy_cores,
    check_variants,
    check_incomplete_targets,
    check_failing_tables,
    check_monitor,
    check_environment,
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
        system = source.replication.identity
        for source_check in SOURCE_CHECKS:
            yield from source_check(source)
    local = gather_local(config, spool, system)
    for local_check in LOCAL_CHECKS:
        yield from local_check(local)
