"""The command line: one module for each command.

Exit codes: 0 success, 1 failure, 2 wrong usage, configuration or Java, 3 refused by the source,
130 SIGINT, 143 SIGTERM. An error is one message on stderr; ``--debug`` adds the traceback.
"""

from pgsluice.cli.app import main

__all__ = ["main"]
