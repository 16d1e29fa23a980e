"""The Java that Spark uses: where it is, and whether Spark supports its version.

Like Spark's own scripts, this looks for ``$JAVA_HOME/bin/java``, or without JAVA_HOME for
``java`` on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pgsluice.errors import ConfigError
from pgsluice.system.processes import Part, start

OLDEST_JAVA = 17
_ATTEMPTS = 3
_VERSION = re.compile(r'version "(\d+)')
JAVA_HINT = (
    "install a JRE (on Debian: apt-get install openjdk-17-jre-headless), "
    "or set JAVA_HOME to the folder of a JRE"
)
"""The hint if there is no suitable Java."""


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java.

    Attributes:
        version: its feature version (8, 11, 17 ...); None if ``java -version`` does not show one.
    """

    program: Path
    version: int | None


def find_java() -> Java | None:
    """The Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    return None if program is None else _ask_for_version(program)


@cache  # a run asks several times, and each starts a JVM
def _ask_for_version(program: str) -> Java | None:
    for _ in range(_ATTEMPTS):
        try:
            process = start(
                Part.JAVA,
                lambda: subprocess.run(
                    [program, "-version"], capture_output=True, text=True, timeout=60, check=False
                ),
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if process.returncode >= 0:  # else a signal ended it, perhaps for lack of memory
            break
    match = _VERSION.search(process.stderr)
    if match is None:
        return Java(Path(program), None)
    # Up to Java 8, versions began with "1.".
    version = int(match[1])
    return Java(Path(program), 8 if version == 1 else version)


def java_problem(java: Java | None) -> str | None:
    """Why Spark cannot use this Java, in one sentence; None if it can."""
    needed = f"Spark needs Java {OLDEST_JAVA} or newer"
    if java is None:
        return f"{needed}, but pgsluice found no Java"
    if java.version is None:
        return f"{needed}, but `{java.program} -version` shows no version"
    if java.version < OLDEST_JAVA:
        return f"{needed}, but {java.program} is Java {java.version}"
    return None


def require_java() -> None:
    """Check that Spark will find a Java that it supports.

    Raises:
        ConfigError: there is none, or it is too old (exit code 2).
    """
    problem = java_problem(find_java())
    if problem is not None:
        raise ConfigError(problem, hint=JAVA_HINT)
