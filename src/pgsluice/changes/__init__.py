"""What changes mean: from typed changes of a table to the last state of each of its keys.

:func:`pgsluice.changes.net.net_changes` is the way in. Sinks that keep current state take its
result; sinks that keep every change never come here.
"""
