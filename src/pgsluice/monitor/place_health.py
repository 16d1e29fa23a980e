"""Is this place fit to run: the spool's folder, the target, what is installed?

From facts to findings and nothing else; :mod:`pgsluice.monitor.examine` gathers the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.monitor.findings import Finding, error, ok, warning
from pgsluice.monitor.wording import format_bytes
from pgsluice.spark.java import Java, java_problem

OLDEST_SPARK = (4, 2)
_LOW_SPACE = 2**30


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """The spool's folder.

    Attributes:
        problem: why nothing can be written there; None: it can.
        file_system: its type as the kernel names it; None: not known.
        free_bytes: what a file may still take.
        other_source: whose spool it is, if not of this source; None: ours, or none yet.
    """

    path: str
    problem: str | None
    file_system: str | None
    free_bytes: int
    other_source: str | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """What is installed here; a version is None where a package is not there."""

    java: Java | None
    pyspark: str | None
    deltalake: str | None


_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre", "afs")


def judge_spool(
    facts: SpoolFacts, *, max_bytes: int | None, is_shared: bool, master: str
) -> Iterator[Finding]:
    """The spool's folder: writable, lasting, large enough, ours."""
    if facts.problem is not None:
        yield error("spool", f"{facts.path}: {facts.problem}", "name another path in [spool]")
        return
    if facts.other_source is not None:
        yield error(
            "spool",
            f"{facts.path} is the spool of {facts.other_source}",
            "name another path in [spool]: a spool belongs to one slot",
        )
        return
    kind = facts.file_system or "unknown"
    free = format_bytes(facts.free_bytes)
    is_remote = kind.startswith(_REMOTE)
    is_local_master = master.startswith("local")
    if kind in ("tmpfs", "ramfs"):
        yield warning(
            "spool",
            f"{facts.path} is in memory ({kind}): it is gone after a restart of the machine, "
            "and with it what the slot no longer holds",
            "put it on a disk",
        )
    elif is_remote and not is_shared:
        yield warning(
            "spool",
            f"{facts.path} is on {kind}: what is durable there is up to another machine",
            "put it on a local disk, or say shared = true if executors elsewhere need it",
        )
    elif not is_local_master and not is_remote:
        yield warning(
            "spool",
            f"{facts.path} is said to be shared and is on {kind}: executors of {master} have to "
            "see it at the same path",
            "mount it on all of them, or take a local master",
        )
    elif facts.free_bytes < (max_bytes or _LOW_SPACE):
        yield warning(
            "spool",
            f"{facts.path} has {free} left: when it is full, the server's WAL begins to grow",
            "make room, or set max_bytes",
        )
    else:
        yield ok("spool", f"{facts.path} can be written, {free} free")


def judge_target(name: str, path: str, problem: str | None) -> Finding:
    """A subscription's Delta target."""
    if problem is not None:
        return error("target", f'subscription "{name}", {path}: {problem}', "name another path")
    return ok("target", f'subscription "{name}" can write to {path}')


def judge_environment(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Java and the Python packages that a subscription needs."""
    problem = java_problem(facts.java)
    if problem is not None:
        yield error(
            "java",
            problem,
            "install a JRE (on Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME",
        )
    elif facts.java is not None:
        yield ok("java", f"{facts.java.version}, {facts.java.program}")
    if facts.pyspark is None:
        yield error("pyspark", "not installed", 'pip install "pgsluice[spark]"')
    elif _numbers(facts.pyspark) < OLDEST_SPARK:
        yield error(
            "pyspark", f"{facts.pyspark}: streaming needs 4.2", 'pip install "pyspark>=4.2"'
        )
    else:
        yield ok("pyspark", facts.pyspark)
    if facts.deltalake is None:
        yield error("deltalake", "not installed", 'pip install "pgsluice[delta]"')
    else:
        yield ok("deltalake", facts.deltalake)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
