"""Names that a database may have and that must never reach a terminal as they are."""

from __future__ import annotations

FORGED = "lake: public.t parked"
ODD_NAMES = (
    "[/b]",  # rich's markup
    ":smile:",  # rich's emoji
    f"line\n{FORGED}",  # another line of a log
    "\x1b]0;title\x07\x1b[2J",  # escape sequences: the terminal's title, an empty screen
    "\x9b31m",  # the same as ESC [, in one character
    "\u202egnp.exe",  # right to left
    "tab\tand\rreturn",
    'it\'s "quoted"',
    "back\\slash",
)
JOINED_NAMES = ("".join(ODD_NAMES[:3]), "".join(ODD_NAMES[3:6]), "".join(ODD_NAMES[6:]))
"""The same in three names."""


def assert_shown(output: str) -> None:
    """Nothing in the output can move the cursor, hide text, or begin a line of its own."""
    raw = {char for char in output if char != "\n" and not char.isprintable()}
    assert not raw, f"{raw} in {output!r}"
    assert not [line for line in output.splitlines() if line.startswith(FORGED)], output
