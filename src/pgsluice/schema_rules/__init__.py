"""Decides what a change of a table's definition means for its target.

There are two questions; each module starts with its rules:

- :mod:`.source`, at a catalog refresh: did rows change in a way that the stream does not carry?
- :mod:`.target`, for a batch of changes: can the target hold these columns without a change?

Answers are values (:mod:`.verdicts`). The caller acts on them: the subscription's catalog refresh,
a task, or a sink. A new rule is one entry here and its test.
"""

from pgsluice.schema_rules.alignment import Slot, alignments
from pgsluice.schema_rules.known import (
    ALL_ACTIONS,
    ColumnState,
    KnownColumns,
    SourceFingerprint,
    added_columns,
    cause_of_copy,
    is_key_proved,
    known_columns,
    known_leaves,
    rows_of_partitions,
    sends_every_change,
    sent_leaves,
)
from pgsluice.schema_rules.look import (
    Look,
    added_partitions,
    emptied_leaves,
    other_attachments,
    renewed_leaves,
)
from pgsluice.schema_rules.source import reconcile_source
from pgsluice.schema_rules.target import (
    reconcile_column,
    reconcile_filter_column,
    reconcile_key,
    reconcile_key_columns,
    reconcile_name,
    reconcile_target,
)
from pgsluice.schema_rules.types import contains, holds, holds_rewritten
from pgsluice.schema_rules.verdicts import (
    AddColumns,
    ColumnsAdded,
    CopyAgain,
    LeaveOut,
    LookFirst,
    ReplacePartitions,
    Same,
    SourceVerdict,
    Verify,
    Widen,
    raise_unless_possible,
)
