"""Decides what a change of a table's definition means for its target.

There are two questions; each module starts with its rules:

- :mod:`.source`, at a catalog refresh: did rows change in a way that the stream does not carry?
- :mod:`.target`, for a batch of changes: can the target hold these columns without a change?

Answers are values (:mod:`.verdicts`). The caller acts on them: the subscription's catalog refresh,
a task, or a sink. A new rule is one entry here and its test.
"""
