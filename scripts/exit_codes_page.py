"""Write docs/exit-codes.md from the table of exit codes.

``python scripts/exit_codes_page.py`` writes the page; tests/docs/test_exit_codes_page.py compares
it with the table.
"""

from __future__ import annotations

from pathlib import Path

from pgsluice.cli.exit_codes import COMMANDS, GENERAL
from pgsluice.errors import ExitCode

PAGE = Path(__file__).parents[1] / "docs" / "exit-codes.md"
_HEAD = """\
# Exit codes
Every command of `pgsluice` ends with one of these codes. `scripts/exit_codes_page.py` writes this
page from the table in the code.

| exit code | meaning |
|---|---|
"""
_BELOW = """
A second signal ends a command at once, with the code of that signal. If a server or a disk does
not respond, the command ends 8 seconds after the first signal. No data is lost in either case.

[messages.md](messages.md) lists the messages, with what to do.

## What a code means for each command
For all codes that are not listed here, the table above applies.

| command | exit code | meaning |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    general = [f"| {code.value} | {GENERAL[code]} |" for code in ExitCode]
    special = [
        f"| `pgsluice {command}` | {code.value} | {meaning} |"
        for command, meanings in COMMANDS.items()
        for code, meaning in meanings.items()
    ]
    return _HEAD + "\n".join(general) + "\n" + _BELOW + "\n".join(special) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
