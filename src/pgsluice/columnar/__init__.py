"""Decodes a segment of the spool to typed Arrow columns, one whole column at a time."""

from pgsluice.columnar.changes import RelationChanges
from pgsluice.columnar.definitions import Definition
from pgsluice.columnar.segment import decode_segment
