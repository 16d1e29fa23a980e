"""Rejects: values that their target column cannot hold, kept in a table of their own.

The column is NULL at the target, and a row of the rejects table has the value's text. A task
writes what it finds as *events* into a file before its commit (:mod:`.events`, :mod:`.files`). The
driver folds the files of a batch into the rejects table before it records the batch (:mod:`.fold`,
:mod:`.folding`). The result depends on the changes alone: a file that is folded again, or that
another attempt wrote again, changes nothing (ADR 0050).
"""
