"""Publications of pgsluice's own: what PostgreSQL 15+ publishes, on servers from 10 on.

The way of a publication: text (:func:`load_publications`) → :class:`Publications`, checked
against the source's tables → :func:`resolve`: what acts on one relation → the row filter room,
which computes it. All of it is pure; the catalog comes as a picture
(:func:`pgsluice.catalog.source_tables.source_catalog`).

Source: the manual, "CREATE PUBLICATION" and "Row Filters";
src/backend/commands/publicationcmds.c, src/backend/replication/pgoutput/pgoutput.c.
"""

from pgsluice.publication.copying import CopyCondition, any_of, copy_condition, fingerprint
from pgsluice.publication.filters import bind_filter
from pgsluice.publication.load import (
    Statements,
    load_configured,
    load_file,
    load_publications,
    subscribed,
)
from pgsluice.publication.model import ACTIONS, Action, Publication, Publications, PublicationTable
from pgsluice.publication.naming import find_table
from pgsluice.publication.object_list import read_relation_name
from pgsluice.publication.of_server import OwnedPublication, server_publications
from pgsluice.publication.publish import Publisher, publish_all
from pgsluice.publication.replica_identity import ReplicaIdentity, check_replica_identity
from pgsluice.publication.resolution import Resolution, Rule, Unfiltered, resolve

__all__ = [
    "ACTIONS",
    "Action",
    "CopyCondition",
    "OwnedPublication",
    "Publication",
    "PublicationTable",
    "Publications",
    "Publisher",
    "ReplicaIdentity",
    "Resolution",
    "Rule",
    "Statements",
    "Unfiltered",
    "any_of",
    "bind_filter",
    "check_replica_identity",
    "copy_condition",
    "find_table",
    "fingerprint",
    "load_configured",
    "load_file",
    "load_publications",
    "publish_all",
    "read_relation_name",
    "resolve",
    "server_publications",
    "subscribed",
]
