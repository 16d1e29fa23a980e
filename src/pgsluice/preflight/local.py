"""Checks of this machine: the spool's folder, the targets' folders, and what is installed."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.hints import copy_again
from pgsluice.monitor.wording import format_bytes
from pgsluice.preflight.facts import LocalFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.shown import shown
from pgsluice.spark.session.java import JAVA_HINT, java_problem
from pgsluice.spark.versions import OLDEST, SparkVersion
from pgsluice.subscription.base.options import too_many_copy_cores

_LOW_DISK_BYTES = 2**30
_IN_MEMORY = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre", "afs")


def check_spool(facts: LocalFacts) -> Iterator[Finding]:
    """Whether the spool's folder is writable, durable, large enough, and belongs to this source."""
    spool, other_source = facts.spool, _other_source(facts)
    if spool.problem is not None:
        way_out = "set path in [spool] to another folder"
        if spool.state is not None:
            way_out += ", or correct its storage_options (or the environment's credentials)"
        yield error("spool", f"{spool.path}: {spool.problem}", way_out)
    elif spool.unreadable is not None:
        yield error(
            "spool",
            f"pgsluice cannot read the spool in {spool.path}: {spool.unreadable}",
            spool.way_out or "set path in [spool] to another folder",
        )
    elif other_source is not None:
        yield error(
            "spool",
            f"the folder {spool.path} already has the spool of {other_source}",
            "set path in [spool] to another folder: a spool belongs to one slot",
        )
    else:
        yield _check_disk(facts)


def _other_source(facts: LocalFacts) -> str | None:
    """The source of the spool, if it is not the configured one; else None."""
    identity, system = facts.spool.identity, facts.system
    if identity is None:
        return None
    is_ours = identity.slot == facts.config.source.slot and (
        system is None
        or (identity.system_identifier, identity.database) == (system.system_id, system.dbname)
    )
    if is_ours:
        return None
    return (
        f'slot "{identity.slot}", database "{identity.database}", '
        f"system {identity.system_identifier}"
    )


def _check_disk(facts: LocalFacts) -> Finding:
    spool, config = facts.spool, facts.config
    kind = spool.file_system or "unknown"
    free = format_bytes(spool.free_bytes)
    if spool.state is not None:
        return ok("spool", f"{spool.path} is writable; its state in {spool.state}, {free} free")
    is_remote = kind.startswith(_REMOTE)
    master = config.spark.get("spark.master", "local")
    if kind in _IN_MEMORY:
        return warning(
            "spool",
            f"the spool {spool.path} is in memory ({kind}): a restart of the machine deletes the "
            "spool, and with it changes that the server no longer has",
            "set path in [spool] to a folder on a disk",
        )
    if is_remote and not config.spool.shared:
        return warning(
            "spool",
            f"the spool {spool.path} is on the network file system {kind}: its durability depends "
            "on another machine",
            "set path in [spool] to a folder on a local disk; or set shared = true in [spool], if "
            "executors on other machines need the spool",
        )
    if not master.startswith("local") and not is_remote:
        return warning(
            "spool",
            f"the spool {spool.path} is on the local file system {kind}, but the executors of "
            f"{master} need the spool at the same path",
            "mount the spool's folder on all executors, or use a local spark.master",
        )
    if spool.free_bytes < (config.spool.max_bytes or _LOW_DISK_BYTES):
        return warning(
            "spool",
            f"the disk of the spool {spool.path} has {free} left: once this disk is full, changes "
            "stay in the server's WAL",
            "free disk space, or move the spool's folder to a larger disk",
        )
    return ok("spool", f"{spool.path} is writable, {free} free")


def check_capture(facts: LocalFacts) -> Iterator[Finding]:
    """Whether the active capture has a problem, or the last one ended with an error."""
    capture = facts.capture
    if capture.message is None:
        return
    often = f", {capture.times} times in a row" if capture.times > 1 else ""
    what, _, todo = capture.message.partition("\n  → ")
    yield warning(
        "capture",
        f"{capture.phase or 'stopped'}{often}: {what}",
        todo or "pgsluice status CONFIG shows whether it has resumed",
    )


def check_monitor(facts: LocalFacts) -> Iterator[Finding]:
    """Whether metrics can be served where [monitor] says."""
    monitor, problem = facts.config.monitor, facts.monitor_problem
    if monitor.address is None:
        return
    if problem is None:
        readers = "" if monitor.is_local else f", for {shown(monitor.readers or '')}"
        yield ok("monitor", f"{monitor.listen} is free{readers}")
    elif facts.capture.is_running:  # a run or a capture is active, which serves there
        yield ok("monitor", f"{monitor.listen} is in use, and an active run serves there")
    else:
        yield error("monitor", problem.what, problem.hint)


def check_targets(facts: LocalFacts) -> Iterator[Finding]:
    """Whether each subscription can write to its target's folder."""
    for target in facts.targets:
        title = f'subscription "{target.subscription}"'
        if target.problem is not None:
            yield error(
                "target",
                f"{title}, target folder {target.folder}: {target.problem}",
                "set path in the sink to another folder; or, for an object store, correct its "
                "credentials, region and endpoint in storage_options or the environment",
            )
        else:
            can = "reaches" if "://" in target.folder else "can write to"
            yield ok("target", f"{title} {can} {target.folder}")


def check_catalog(facts: LocalFacts) -> Iterator[Finding]:
    """Whether Spark's session can register the targets in a permanent catalog."""
    for subscription in facts.config.subscriptions:
        lacking = subscription.sink.lacking_for_catalog(facts.config.spark, facts.pyspark)
        for what, todo in lacking:
            yield warning("catalog", f'subscription "{subscription.name}": {what}', todo)


def check_copy_cores(facts: LocalFacts) -> Iterator[Finding]:
    """Whether copies leave a core for changes."""
    for subscription in facts.config.subscriptions:
        sentence = too_many_copy_cores(facts.config, subscription)
        if sentence is not None:
            what = f'subscription "{subscription.name}": {sentence}'
            yield warning(
                "copies", what, 'lower copy_cores, or give Spark more cores ("spark.master")'
            )


def check_variants(facts: LocalFacts) -> Iterator[Finding]:
    """Whether the installed Spark reads the VARIANT columns that subscriptions have."""
    version = facts.pyspark
    if version is None or SparkVersion.parse(version).has_variants:
        return
    for subscription in facts.config.subscriptions:
        if "variant" in (subscription.json_as, *subscription.types.values()):
            yield warning(
                "variant",
                f'subscription "{subscription.name}" makes VARIANT columns; Spark {version} '
                "refuses tables that have one",
                "read them with Spark 4.0 or newer, or DuckDB (docs/types.md); or set json and "
                'types to "string", and copy the tables again: pgsluice copy CONFIG TABLE',
            )


def check_incomplete_targets(facts: LocalFacts) -> Iterator[Finding]:
    """Which targets did not get all changes of their tables, as of the last run."""
    for record in facts.records:
        reasons = [(t.title, why) for t in record.tables.values() for why in t.incomplete]
        reasons += [(".".join(name), left.why) for name, left in record.former.items()]
        for title, why in sorted(reasons):
            sentence, _, hint = why.partition("\n  → ")
            if hint:
                what = f'subscription "{record.name}", target {title}: {sentence}'
                yield warning("target", what, hint)


def check_failing_tables(facts: LocalFacts) -> Iterator[Finding]:
    """Which tables are not applied, as of the last run, and why."""
    for record in facts.records:
        for table in sorted(record.tables.values(), key=lambda table: table.title):
            if table.error is not None and (table.is_active or table.is_parked):
                state = "is parked" if table.is_parked else "is not applied"
                reason, _, hint = table.error.partition("\n  → ")
                yield warning(
                    "table",
                    f'subscription "{record.name}", table {table.title} {state}: {reason}',
                    hint or f"resolve this problem, then copy the table: {copy_again(table.title)}",
                )


def check_environment(facts: LocalFacts) -> Iterator[Finding]:
    """Whether Java and the Python packages that a subscription needs are installed."""
    if not facts.config.subscriptions:
        yield warning(
            "subscription",
            "the configuration has no subscription: pgsluice receives changes, but applies them "
            "nowhere",
            "add a [[subscription]] with a sink to the configuration",
        )
        return
    java, pyspark, deltalake = facts.java, facts.pyspark, facts.deltalake
    problem = java_problem(java)
    if problem is not None:
        yield error("java", problem, JAVA_HINT)
    elif java is not None:
        yield ok("java", f"{java.version}, {java.program}")
    if pyspark is None:
        yield error(
            "pyspark",
            "the Python package pyspark is not installed",
            'pip install "pgsluice[spark]"',
        )
    elif SparkVersion.parse(pyspark) < OLDEST:
        yield error(
            "pyspark",
            f"version {pyspark} is too old: pgsluice needs {OLDEST} or newer",
            f'pip install "pyspark>={OLDEST}"',
        )
    else:
        yield ok("pyspark", pyspark)
    if deltalake is None:
        yield error(
            "deltalake",
            "the Python package deltalake is not installed",
            'pip install "pgsluice[delta]"',
        )
    else:
        yield ok("deltalake", deltalake)
