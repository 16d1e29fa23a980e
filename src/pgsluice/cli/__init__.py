"""The command line: one module a command.

Exit codes: 0 done, 1 the work failed, 2 usage, configuration or Java, 3 the source refuses,
130 SIGINT, 143 SIGTERM. An error is one message on stderr; ``--debug`` adds the traceback.
"""

from pgsluice.cli.app import main

__all__ = ["main"]
