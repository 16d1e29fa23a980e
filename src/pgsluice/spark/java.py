"""The Java that Spark would use: where it is, and whether it is new enough.

Looked for as Spark's own scripts do: ``$JAVA_HOME/bin/java``, else ``java`` on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgsluice.errors import ConfigError

NEEDED = 17
_VERSION = re.compile(r'version "(\d+)')
_HINT = (
    "install a JRE (on Debian: apt-get install openjdk-17-jre-headless), "
    "or set JAVA_HOME to one that is there"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found.

    Attributes:
        program: the executable.
        version: its feature version (8, 11, 17 ...); None: it does not say one.
    """

    program: Path
    version: int | None


def find_java(environment: Mapping[str, str] | None = None) -> Java | None:
    """The Java that Spark would start in this environment, or None."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        found = shutil.which("java", path=str(Path(home) / "bin"))
    else:
        found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is None:
        return None
    try:
        said = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said)
    if match is None:
        return Java(Path(found), None)
    # Until Java 8 versions began with "1.".
    version = int(match[1])
    return Java(Path(found), 8 if version == 1 else version)


def java_problem(java: Java | None) -> str | None:
    """What is wrong with it in one sentence, or None."""
    if java is None:
        return f"Spark needs Java {NEEDED} or newer and none was found"
    if java.version is None:
        return f"{java.program} does not say which Java it is; Spark needs {NEEDED} or newer"
    if java.version < NEEDED:
        return f"Spark needs Java {NEEDED} or newer and {java.program} is {java.version}"
    return None


def require_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will use.

    Raises:
        ConfigError: there is none, or it is too old (exit code 2).
    """
    java = find_java(environment)
    problem = java_problem(java)
    if problem is not None or java is None:
        raise ConfigError(problem or "", hint=_HINT)
    return java
