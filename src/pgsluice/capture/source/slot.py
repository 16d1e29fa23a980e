"""What a slot has to be, with which options it is read, and connecting until the server answers."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from pgsluice.catalog import Connection
from pgsluice.catalog.server import SlotInfo, slot_info
from pgsluice.config import Config, SourceConfig
from pgsluice.errors import ForeignSource, SlotInUse, SourceRefused, SourceUnreachable
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.replication import PgoutputOptions, SystemIdentity, connect_sql, source_errors
from pgsluice.spool import SpoolIdentity

logger = logging.getLogger(__name__)

EARLIER_ENDS_S = 6.0
"""How long a start waits for an earlier capture, in seconds: without its parent, capture ends
within 4 s."""
_RETRY_S = 0.25
_SILENT = (
    "the server has not answered for %g s\n  → pgsluice waits for %g s (connect_timeout_s in "
    "[source]); check the host and the port in the dsn, and that no firewall is in between"
)
_SILENT_S = 5.0
"""After how long a server's silence is logged, in seconds."""
STALE_WALSENDER_TIMEOUT_S = 15.0
"""How long a walsender of a killed capture may still hold the slot, in seconds."""
Result = TypeVar("Result")


def await_free_slot(config: Config, patience_s: float, is_stopping: Callable[[], bool]) -> None:
    """Wait until no process receives from the slot: capture on another machine holds no lock of
    this one, but the server lets only one receive.

    Args:
        patience_s: how long to wait: the server may not have noticed yet that a capture has ended.

    Raises:
        SlotInUse: another process receives from it.
        SourceUnreachable, SourceRefused: the server cannot be queried.
    """
    source, deadline = config.source, time.monotonic() + patience_s
    with session_with_retry(source, is_stopping) as sql:
        while True:
            with source_errors("reading the slot"):
                slot = slot_info(sql, source.slot)
            if slot is None or not slot.is_active:
                return
            if time.monotonic() >= deadline or is_stopping():
                raise in_use(slot)
            time.sleep(_RETRY_S)


def generated_columns(config: Config) -> Collection[str] | None:
    """Names of generated columns that pgsluice's own publications publish; None: all generated
    columns. Raises ConfigError if the file of statements cannot be read."""
    if config.publications is None:
        return ()
    from pgsluice.publication import Statements  # takes a while, and most have no such section

    return Statements.read(config.publications).generated_columns()


def in_use(slot: SlotInfo) -> SlotInUse:
    return SlotInUse(
        f"slot {slot.name!r} is in use by the server's process {slot.active_pid}",
        hint="another capture process uses this slot: stop that process first, or choose another "
        "slot name in [source]: " + other_slot(slot.name, "new"),
    )


def other_slot(name: str, suffix: str) -> str:
    """The line ``slot = "…"`` of a configuration, with this slot name and a suffix."""
    plain = re.sub(r"[^a-z0-9]+", "_", suffix.lower()).strip("_") or "2"
    return f'slot = "{name[: 62 - len(plain[:30])]}_{plain[:30]}"'


def check_identity(identity: SpoolIdentity, system: SystemIdentity) -> None:
    """Raise ForeignSource if the spool belongs to another system or database."""
    if system.system_id != identity.system_identifier:
        raise ForeignSource(
            f"the server has the system identifier {system.system_id}, but the spool was filled "
            f"from the server with the system identifier {identity.system_identifier}",
            hint="correct the dsn in [source]; to use this server as a new source, run `pgsluice "
            "drop CONFIG`, or set path in [spool] to another folder",
        )
    if system.dbname != identity.database:
        raise ForeignSource(
            f"the dsn leads to database {system.dbname!r}, but the spool was filled from database "
            f"{identity.database!r}",
            hint="correct the dsn in [source]; or, since a spool has the changes of one database, "
            "set path in [spool] to another folder, and another slot name in [source]: "
            f"{other_slot(identity.slot, system.dbname)}",
        )


def check_slot_kind(slot: SlotInfo, database: str, *, two_phase: bool) -> None:
    """Check that pgsluice can read the slot, and that it was created for the configured options.

    Raises:
        ForeignSource: it is physical, or of another plugin or database.
        SourceRefused: it was created with the other ``two_phase``.
    """
    refuse_other_owner(slot, database)
    if slot.two_phase != two_phase:
        was, asked = str(slot.two_phase).lower(), str(two_phase).lower()
        raise SourceRefused(
            f"slot {slot.name!r} was created with two_phase = {was}, but the configuration has "
            f"two_phase = {asked}",
            hint=f"set two_phase = {was} in [source]: a slot cannot change this setting. For the "
            f"other value, {COPY_ALL_AGAIN}",
        )


def refuse_other_owner(slot: SlotInfo, database: str) -> None:
    """Raise ForeignSource for a slot that another database, plugin or standby uses: pgsluice must
    not drop it."""
    if slot.plugin == "pgoutput" and slot.database == database:
        return
    owner = "is a physical slot"
    if slot.plugin is not None:
        owner = f"belongs to database {slot.database} (plugin {slot.plugin})"
    raise ForeignSource(
        f"slot {slot.name!r} {owner}, so pgsluice cannot use it for database {database} (plugin "
        "pgoutput): slot names are unique across all databases of a server",
        hint="keep that slot, and choose another slot name in [source]: "
        f"{other_slot(slot.name, database)}",
    )


def pgoutput_options(
    source: SourceConfig, publications: tuple[str, ...], server_version: int
) -> PgoutputOptions:
    """The pgoutput options to request: the configured ones, and otherwise the most that the server
    supports; raises SourceRefused for a configured option that it does not support."""
    return PgoutputOptions(
        publication_names=publications,
        proto_version=source.proto_version,
        streaming=source.streaming,
        two_phase=source.two_phase,
        binary=source.binary,
        messages=source.messages,
        origin=source.origin,
    ).resolve(server_version)


def options_in_force(options: PgoutputOptions) -> dict[str, str]:
    """pgoutput's options in the form that the spool records."""
    return {
        "proto_version": str(options.proto_version),
        "streaming": str(options.streaming),
        "two_phase": str(options.two_phase).lower(),
        "binary": str(options.binary).lower(),
        "messages": str(options.messages).lower(),
        "origin": options.origin,
    }


def session_with_retry(source: SourceConfig, is_stopping: Callable[[], bool]) -> Connection:
    """A session for SQL; see :func:`connect_with_retry`."""
    return connect_with_retry(
        lambda: connect_sql(
            source.conninfo, timeout_s=source.connect_timeout_s, silence_s=source.silence_s
        ),
        source.connect_timeout_s,
        is_stopping,
    )


def connect_with_retry(
    connect: Callable[[], Result],
    timeout_s: float,
    is_stopping: Callable[[], bool] = lambda: False,
    silent_s: float = _SILENT_S,
) -> Result:
    """Connect, and retry until the time is over: a starting server needs a moment.

    The log says what this waits for: at the first failure, or if the server is silent for
    ``silent_s`` seconds.

    Raises:
        SourceUnreachable: no attempt succeeded.
        SourceRefused: the server refuses the connection.
    """
    deadline, has_failed = time.monotonic() + timeout_s, False
    silence = threading.Timer(silent_s, logger.warning, [_SILENT, silent_s, timeout_s])
    silence.daemon = True
    silence.start()
    try:
        while True:
            try:
                return connect()
            except SourceUnreachable as error:
                silence.cancel()
                if time.monotonic() + _RETRY_S >= deadline or is_stopping():
                    raise
                if not has_failed:
                    has_failed = True
                    logger.warning(
                        "%s\n  → pgsluice retries for %g s (connect_timeout_s in [source])%s",
                        error.what,
                        timeout_s,
                        f"; {error.hint}" if error.hint else "",
                    )
                time.sleep(_RETRY_S)
    finally:
        silence.cancel()
