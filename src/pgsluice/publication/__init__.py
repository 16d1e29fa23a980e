"""pgsluice's own publications: PostgreSQL 15's row filters and column lists, for servers from 10
on.

A text of statements becomes :class:`Publications`, checked against the source's tables
(:func:`load_publications`). :func:`resolve` finds the rules that apply to one relation, and a
:class:`Publisher` applies them to its decoded changes. Nothing here connects to the server: the
source's catalog is passed as a value
(:func:`pgsluice.catalog.tables.source_tables.source_catalog`).

Other rooms import from this package only, never from its modules.

Source: the manual, "CREATE PUBLICATION" and "Row Filters";
src/backend/commands/publicationcmds.c, src/backend/replication/pgoutput/pgoutput.c.
"""

from pgsluice.definitions.publications import (
    ACTIONS,
    Action,
    OwnedPublication,
    Publication,
    Publications,
    PublicationTable,
)
from pgsluice.publication.publishing.publish import Publisher, publish_all
from pgsluice.publication.publishing.replica_identity import check_replica_identity
from pgsluice.publication.publishing.resolution import Resolution, fingerprint, resolve
from pgsluice.publication.statements.filters import bind_filter
from pgsluice.publication.statements.load import Statements, load_publications, subscribed
from pgsluice.publication.statements.lookup import find_table
from pgsluice.publication.statements.parse import read_relation_name
