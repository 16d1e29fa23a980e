"""When a table has to be copied again: its fingerprint of filters and columns changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pgsluice.definitions.publications import ACTIONS
from pgsluice.definitions.published import PublishedBy
from pgsluice.publication.publishing.resolution import Resolution


def fingerprint(own: Resolution | None, server: Sequence[PublishedBy] = ()) -> str:
    """A stable text for what acts on a relation: if it changes, the table is copied again.

    Filters, columns and the relation that decides count (by OID, because a rename changes no
    row); ``publish`` counts only where it changes which filters act on a published action.

    Args:
        own: what acts on the relation, of our publications.
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
