"""Compares a table with its target at one position.

PostgreSQL itself formats and hashes the rows of the source (:mod:`.source`); code that only this
room has does it for the rows of the target (:mod:`.postgres_text`, :mod:`.target`). Nothing here
imports the decoder or its types, so that their errors are found. :mod:`.digest` defines a row's
hash; :func:`compare` returns whether both sides are equal, and the keys that differ.
"""

from pgsluice.verification.change_log import LogRows
from pgsluice.verification.compare import Comparison, compare
from pgsluice.verification.page_ranges import EVERYTHING, Extent
from pgsluice.verification.source import ComparedTable, one_snapshot
from pgsluice.verification.target import DeltaRows, KeyRanges, TargetRows, UndeletedRows
