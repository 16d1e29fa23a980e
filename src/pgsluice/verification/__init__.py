"""Is the target what the source is? Compares a table with its copy at one position.

The source's side is formatted and hashed by PostgreSQL itself (:mod:`.source`), the target's
by code that only this room has (:mod:`.postgres_text`, :mod:`.target`): nothing here imports
the decoder or its types, so that a mistake of theirs cannot hide itself. What a row's hash is
taken of is written in :mod:`.digest`; :func:`compare` says equal, or which keys are not.
"""

from pgsluice.verification.compare import Comparison, compare
from pgsluice.verification.digest import Digest
from pgsluice.verification.source import ComparedColumn, ComparedTable, SourceSide, one_snapshot
from pgsluice.verification.target import ArrowRows, DeltaRows, TargetRows, TargetSide

__all__ = [
    "ArrowRows",
    "ComparedColumn",
    "ComparedTable",
    "Comparison",
    "DeltaRows",
    "Digest",
    "SourceSide",
    "TargetRows",
    "TargetSide",
    "compare",
    "one_snapshot",
]
