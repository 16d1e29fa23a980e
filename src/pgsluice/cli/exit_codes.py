"""The meaning of each command's exit codes: the only table of them, and the source of
docs/exit-codes.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from pgsluice.errors import ExitCode

GENERAL: Mapping[ExitCode, str] = {
    ExitCode.DONE: "The command did what it was asked to do.",
    ExitCode.FAILED: "The work failed, or the command found a problem.",
    ExitCode.USAGE: "The command line, the configuration or the Java installation is wrong.",
    ExitCode.SOURCE: (
        "The server, its slot or the spool does not fit: a repetition fails until you change it."
    ),
    ExitCode.INTERRUPTED: "SIGINT (Ctrl-C) stopped the command. The next start resumes.",
    ExitCode.TERMINATED: "SIGTERM stopped the command. The next start resumes.",
}
"""The default meanings, if :data:`COMMANDS` has nothing more exact."""
COMMANDS: Mapping[str, Mapping[ExitCode, str]] = {
    "init": {
        ExitCode.DONE: "The configuration file is written.",
        ExitCode.USAGE: "The file exists already, a value is invalid, or there is no terminal.",
    },
    "demo": {
        ExitCode.DONE: "All target tables equal their source.",
        ExitCode.FAILED: "A target table differs, or a step failed.",
    },
    "check": {
        ExitCode.DONE: "There is no error. There may be warnings.",
        ExitCode.FAILED: "At least one line is an error.",
    },
    "run": {
        ExitCode.DONE: "With `--once`: all tables reached the source's position.",
        ExitCode.FAILED: "With `--once`: a table is parked, or a target could not be written. "
        "Without it: the spool or Spark failed.",
    },
    "capture": {
        ExitCode.DONE: "With `--once`: the spool reached the source's position.",
        ExitCode.FAILED: "The spool could not be written, or with `--once` the server could not "
        "be reached.",
    },
    "status": {
        ExitCode.DONE: "The status is printed, also if the server cannot be reached. With "
        "`--check`: nothing is wrong by the thresholds of `[monitor]`.",
        ExitCode.FAILED: "With `--check`: the printed line names a problem.",
    },
    "page": {ExitCode.USAGE: "The configuration is wrong, or the port is in use."},
    "describe": {ExitCode.FAILED: "The server cannot be reached."},
    "explain": {ExitCode.FAILED: "The server cannot be reached."},
    "decode": {
        ExitCode.FAILED: "A message is malformed, or illegal at its place.",
        ExitCode.USAGE: "The file is missing, or an option is unknown.",
    },
    "copy": {
        ExitCode.DONE: "The table is copied.",
        ExitCode.FAILED: (
            "The copy failed, or you declined the question. With an active run the "
            "request may still be pending; the message shows it."
        ),
    },
    "verify": {
        ExitCode.DONE: "All compared tables are equal.",
        ExitCode.FAILED: "Rows differ, or a published table could not be compared.",
    },
    "at": {ExitCode.FAILED: "No kept checkpoint is as old as that."},
    "rejects": {ExitCode.FAILED: "The rejects table cannot be read."},
    "drop": {
        ExitCode.DONE: "The slot, the publications and the state are gone.",
        ExitCode.FAILED: "You declined the question, the server cannot be reached, or the role "
        "may not drop everything.",
    },
}
"""For each command, its exit codes with their meanings."""


def epilog(command: str) -> str:
    """The exit codes of a command, as the end of its help."""
    lines = ["\b", "Exit codes:"]  # typer keeps the lines of a paragraph that begins so
    for code in ExitCode:
        meaning = COMMANDS.get(command, {}).get(code, GENERAL[code]).replace("`", "")
        lines += textwrap.wrap(
            meaning, 78, initial_indent=f"  {code.value:<5}", subsequent_indent=" " * 7
        )
    return "\n".join(lines)
