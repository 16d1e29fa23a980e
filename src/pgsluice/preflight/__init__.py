"""The checks of ``pgsluice check``: whether a configuration can run, before anything runs.

:mod:`~pgsluice.preflight.gather` asks the server and this machine and changes nothing; what it
learns are :mod:`~pgsluice.preflight.facts`. Each check is one pure function from facts to
findings, listed in :mod:`~pgsluice.preflight.checks`. To add a check: write its function, add
it to the list, and test it with facts made by hand.
"""
