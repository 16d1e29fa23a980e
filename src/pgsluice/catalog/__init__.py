"""Reads the source's catalog: version, slots, relations, types, publications.

Queries run on PostgreSQL 10 to 18 over a connection of :func:`pgsluice.replication.connect_sql`
(the ``replication`` room is not imported here): names are qualified. Nothing is written except by
:func:`ensure_publications`, :func:`publish_for_stream` and :func:`drop_publications`. The
server's errors are raised as
psycopg's unless a function says otherwise; ``replication.source_errors`` maps them.
"""

from pgsluice.catalog.changes import CatalogChanges
from pgsluice.catalog.partitions.bounds import PartitionBound, fetch_with_bounds, partition_bounds
from pgsluice.catalog.partitions.leaves import (
    finds_pages,
    leaf_sizes,
    partition_columns_of,
    partition_trees,
)
from pgsluice.catalog.partitions.new_partitions import (
    NewPartitions,
    inspect_new_partitions,
    notices_partitions,
)
from pgsluice.catalog.publications.managed import (
    PublicationReport,
    drop_publications,
    ensure_publications,
    our_publications,
    publish_for_stream,
    stream_publication,
)
from pgsluice.catalog.publications.publications import (
    PublicationInfo,
    notices_publications,
    publications_of,
    server_publications,
    unnoticed_publications,
)
from pgsluice.catalog.publications.published import FilterTexts, PublishedCatalog, relations_of
from pgsluice.catalog.publications.statements import drop_statement
from pgsluice.catalog.server import (
    ServerInfo,
    SlotInfo,
    flush_lsn,
    insert_lsn,
    server_info,
    slot_info,
    wal_timeline,
)
from pgsluice.catalog.tables.key_bounds import key_ranges
from pgsluice.catalog.tables.keys import prove_keys, unique_indexes
from pgsluice.catalog.tables.locks import lock_for_reading, locked_tables
from pgsluice.catalog.tables.relations import fetch_many, fetch_relation_facts
from pgsluice.catalog.tables.tables import (
    UserTable,
    fetch_comments,
    foreign_partitions,
    has_columns_of_snapshot,
    has_name,
    is_in_snapshot,
    leaf_filenodes,
    tables_named,
    tables_with_fresh_files,
    user_tables,
)
from pgsluice.catalog.tables.witnesses import CatalogWitnesses, fetch_witnesses, missing_values
from pgsluice.catalog.visibility import (
    TransactionStatus,
    counts_as_standby,
    sees_transaction,
    transaction_statuses,
)
