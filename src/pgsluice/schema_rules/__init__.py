"""Decides what a change of a table's definition means for its target.

There are two questions; each module starts with its rules:

- :mod:`.source`, at a catalog refresh: did rows change in a way that the stream does not carry?
- :mod:`.target`, for a batch of changes: can the target hold these columns without a change?

A refresh gets the answer as a value (:mod:`.verdicts`). A task or a sink gets the columns to add,
or an error with the recovery action. A new rule is one entry here and its test.
"""
