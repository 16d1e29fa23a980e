"""The versions of a table's rows in a batch, for a history.

Every row that is there at the end of a transaction that changed it is a version: of several updates
within one transaction, the last one counts. A version ends where its key changes next. So an INSERT
ends one, too: its row may have gone without a change, as DROP and DETACH of a partition send none.

Changes are divided at each TRUNCATE. Each part starts from the result of those before it, and may
begin or end within a transaction: a version that another part of the same transaction replaces has
no length then, and vanishes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pgsluice.changes.carried import filled_rows
from pgsluice.changes.events import Events, join_runs
from pgsluice.changes.history.columns import TIME, Closings, HistoryColumns
from pgsluice.changes.lineage import Keys, follow, last_marked, number_keys
from pgsluice.changes.net import NetChanges, delete_rows
from pgsluice.changes.truncates import Place
from pgsluice.columnar.changes import INSERT, TRUNCATE, UPDATE, Int64s, Mask, RelationChanges


def versions_of(
    changes: Sequence[RelationChanges],
    history: HistoryColumns,
    *,
    schema: pa.Schema,
    key: tuple[str, ...],
    missing: Mapping[str, pa.Scalar],
    begins: Mapping[str, Place] | None = None,
    truncates: Collection[Place] = (),
) -> Iterator[NetChanges]:
    """The versions that changes make, in consecutive parts.

    Args:
        schema: the table's columns, without those of the history.
        changes, key, missing, begins, truncates: see :func:`pgsluice.changes.net.net_changes`. The
            source proves that keys are unique.

    Raises:
        TableError: the changes cannot be applied; the message says what to do.
    """
    events = join_runs(changes, schema, key, missing, begins, truncates)
    ends = [*np.flatnonzero(events.actions == TRUNCATE).tolist(), len(events.actions)]
    was_truncated = False
    for first, end in pairwise([-1, *ends]):
        is_truncated = first >= 0 and not was_truncated
        was_truncated = first >= 0 and end == first + 1  # the next TRUNCATE finds no row
        if end > first + 1 or is_truncated:
            at = (int(events.positions[first]), int(events.times[first])) if first >= 0 else None
            part = events.between(first + 1, end)
            yield _versions(part, history, schema, key, at)


def _versions(
    events: Events,
    history: HistoryColumns,
    schema: pa.Schema,
    key: tuple[str, ...],
    truncated_at: tuple[int, int] | None,
) -> NetChanges:
    """Changes without a TRUNCATE among them as net changes of a history; ``truncated_at`` is the
    position and time of the one before them."""
    is_empty = truncated_at is not None
    keys = number_keys(events, key)
    lineages = follow(events, keys, is_empty=is_empty, may_have_inserted=True)
    # The last INSERT or DELETE of each row up to the change.
    bound = last_marked(lineages.of_change, events.actions != UPDATE)
    inserted = (bound >= 0) & (events.actions[bound] == INSERT)
    origin = lineages.origin[lineages.of_change]
    is_there = inserted | ((bound < 0) & (origin >= 0))
    at_key, change, is_row = _states(keys, is_there)
    follows = np.append(at_key[1:] == at_key[:-1], False)
    following: Int64s = np.append(change[1:], -1)
    ends = np.where(follows, events.positions[following], -1) if len(change) else following[:0]
    is_version = is_row & (ends != events.positions[change])
    made, ends, ended_by = change[is_version], ends[is_version], following[is_version]
    rows, absent = filled_rows(events, lineages, made)
    touched, first = np.unique(at_key, return_index=True)
    place = np.full(keys.count, -1)
    place[touched] = np.arange(len(touched))
    sources: Int64s = np.where(inserted[made], -1, place[origin[made]])
    is_open = ends < 0
    values = history.values(
        events.positions[made],
        pa.array(events.times[made], TIME),
        pa.array(ends, pa.int64(), mask=is_open),
        pa.array(events.times[ended_by] if len(made) else ended_by, TIME, mask=is_open),
    )
    for field, column in zip(history.fields, values, strict=True):
        rows = rows.append_column(field, column)
    changed = change[first]
    return replace(
        delete_rows(keys.take(touched), history.of_table(schema), key),
        truncated=is_empty,
        rows=rows,
        inserted=inserted[made],
        absent=absent,
        only_new=is_empty,
        skipped=int(np.count_nonzero(~is_there & (events.actions == UPDATE))),
        closings=Closings(
            history,
            events.positions[changed],
            events.times[changed],
            sources,
            truncated_at,
        ),
    )


def _states(keys: Keys, is_there: Mask) -> tuple[Int64s, Int64s, Mask]:
    """What changes make of keys, sorted by key, then in order: the key, the change, and whether
    the key has a row afterwards."""
    leaves_row = (keys.after >= 0) & is_there
    ends_row = (keys.before >= 0) & (keys.before != keys.after)
    change = np.concatenate([np.flatnonzero(leaves_row), np.flatnonzero(ends_row)])
    at_key = np.concatenate([keys.after[leaves_row], keys.before[ends_row]])
    is_row = np.arange(len(change)) < np.count_nonzero(leaves_row)
    order = np.lexsort((change, at_key))
    return at_key[order], change[order], is_row[order]
