"""Fingerprints of filters and columns: if a table's fingerprint changes, it is copied again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pgsluice.definitions.publications import ACTIONS
from pgsluice.definitions.published import PublishedBy
from pgsluice.publication.publishing.resolution import Resolution


def fingerprint(own: Resolution | None, server: Sequence[PublishedBy] = ()) -> str:
    """A stable text for the rules of a relation: if it changes, the table is copied again.

    It contains filters, columns and the relation whose rules apply (by OID, because a rename
    changes no row). ``publish`` is included only if it changes which filters apply to a published
    action.

    Args:
        own: the rules of pgsluice's own publications for the relation.
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
