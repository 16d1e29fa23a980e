"""Would capture go on with this server's timeline? The same decision, without taking it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pgsluice.capture.timeline import History, Received, start_on
from pgsluice.errors import SourceRefused
from pgsluice.monitor.findings import Finding, Level
from pgsluice.replication import SystemIdentity, TimelineSwitch
from pgsluice.spool import SpoolReader


def judge_timeline(
    path: Path, system: SystemIdentity, switches: Sequence[TimelineSwitch]
) -> Iterator[Finding]:
    """Nothing where the spool is not of this system, or on the server's timeline already.

    Prepared transactions are left to capture, which alone reads them.

    Raises:
        SpoolError: the spool cannot be read.
    """
    if not SpoolReader.is_there(path):
        return
    reader = SpoolReader(path)
    identity = reader.identity()
    known = History(identity.timeline, identity.history)
    server = History.of_server(system.timeline, switches)
    if identity.system_identifier != system.system_id or known == server:
        return
    try:
        start = start_on(Received(known, reader.position(), reader.frontier()), server)
    except SourceRefused as error:
        yield Finding(Level.ERROR, "timeline", error.what, error.hint)
    else:
        what = f"{server.timeline}; the next run goes on there from {start}"
        yield Finding(Level.OK, "timeline", what)
