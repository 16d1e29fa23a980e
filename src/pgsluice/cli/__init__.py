"""The command line: one module a command."""


def main() -> None:
    """Entry point of the ``pgsluice`` command."""
