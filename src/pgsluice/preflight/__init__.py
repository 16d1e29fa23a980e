"""The checks of ``pgsluice check``: whether a configuration can run, before anything runs.

:mod:`~pgsluice.preflight.gathering` reads facts (:mod:`~pgsluice.preflight.facts`) from the server
and this machine. Each check is one pure function from facts to findings, listed in
:mod:`~pgsluice.preflight.checks`. To add a check: write its function, add it to the list, and test
it with hand-made facts.
"""
