"""``python -m pgsluice``: the same as the command ``pgsluice``."""

from pgsluice.cli import main

main()
