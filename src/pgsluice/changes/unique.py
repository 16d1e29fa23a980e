"""Checks keys that the source does not prove to be unique: two rows with one key are an error,
never merged.

A change identifies its row by the key alone. If an index proves that keys are unique, this module
is not used. Otherwise each key of a batch is followed through its changes, which have to belong to
one row at a time. The sink checks the target's rows before the batch: at most one row of each key,
and none of a key that the batch starts to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.changes.lineage import Keys
from pgsluice.columnar.changes import Int64s, Mask
from pgsluice.errors import TableError
from pgsluice.hints import copied_again
from pgsluice.lsn import Lsn
from pgsluice.sql import quote_identifier, quote_title


@dataclass(frozen=True, slots=True)
class UnprovedKeys:
    """The n keys of a batch whose rows a sink has to count before it changes any.

    Attributes:
        keys: the key columns, each key once.
        is_new: n; whether the target must not have a row with the key. Of other keys, it has at
            most one row.
        positions: n; the position of each key's first change.
    """

    keys: pa.Table
    is_new: Mask
    positions: Int64s

    def refuse_shared(self, found: Int64s, table: str) -> None:
        """Check the keys against the target's rows; ``found`` has the index of each of these rows'
        key.

        Raises:
            TableError: two rows have, or would have, the same key.
        """
        rows = np.bincount(found, minlength=len(self.is_new))
        shared = rows > np.where(self.is_new, 0, 1)
        if shared.any():
            count, position = int(np.count_nonzero(shared)), int(self.positions[shared].min())
            raise shared_keys_error(count, self.keys.schema.names, table, Lsn(position))


def follow_unproved(
    keys: Keys, positions: Int64s, names: Sequence[str], table: str, *, is_complete: bool
) -> UnprovedKeys:
    """The keys of changes in commit order, if each key has at most one row at a time.

    Args:
        is_complete: the stream has every change. Otherwise an INSERT may follow an INSERT, because
            the DELETE in between was not sent.

    Raises:
        TableError: two rows have the same key at some moment.
    """
    stays = keys.before == keys.after
    ends = np.flatnonzero(~stays & (keys.before >= 0))
    begins = np.flatnonzero(~stays & (keys.after >= 0))
    same = np.flatnonzero(stays)
    key = np.concatenate([keys.before[ends], keys.after[begins], keys.after[same]])
    change = np.concatenate([ends, begins, same])
    # An update ends its old key before it begins its new one.
    begins_row = np.zeros(len(key), np.bool_)
    begins_row[len(ends) : len(ends) + len(begins)] = True
    ends_row = np.arange(len(key)) < len(ends)
    order = np.lexsort((change, key))
    key, change = key[order], change[order]
    begins_row, ends_row = begins_row[order], ends_row[order]
    is_first = np.append(np.ones(min(len(key), 1), np.bool_), key[1:] != key[:-1])
    if is_complete:
        has_row = np.append(False, ~ends_row[:-1])[: len(key)]
        shared = ~is_first & (begins_row == has_row)
        if shared.any():
            count = len(np.unique(key[shared]))
            raise shared_keys_error(count, names, table, Lsn(int(positions[change[shared]].min())))
    return UnprovedKeys(
        keys.take(key[is_first]),
        begins_row[is_first] & is_complete,
        positions[change[is_first]],
    )


def shared_keys_error(count: int, key: Sequence[str], table: str, position: Lsn) -> TableError:
    """The error for keys that several rows of a table have; the position is that of a change of
    such a key, or of the snapshot that has them."""
    values = "1 value" if count == 1 else f"{count} values"
    verb = "belongs" if count == 1 else "belong"
    columns = ", ".join(map(quote_identifier, key))
    shared = f"SELECT {columns} FROM {quote_title(table)} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608 - for people
    return TableError(
        f"the key ({', '.join(key)}) of table {table} is not unique: {values} {verb} to more than "
        f"one row, for example at {position}",
        hint="set `key` in the subscription to columns that identify each row, or remove the "
        f"rows that {shared} finds; if it finds none, and the key's constraint is DEFERRABLE (rows "
        "can share such a key within a transaction), drop the constraint, and add it as NOT "
        f"DEFERRABLE; then {copied_again(table)}",
        table=table,
        count=count,
        lsn=position,
    )
