"""Timeline histories: the ancestors of a server's timeline, and where each one ended.

A promoted standby starts a new timeline at the end of what it had replayed. Its history names every
timeline before, oldest first, with the LSN at which the next one began: the *switch point*. Both
timelines share the WAL up to it. The old primary may continue the old timeline past it, with other
records at the same LSNs. Source: ``readTimeLineHistory`` in src/backend/access/transam/timeline.c.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn

_LINE = re.compile(r"\s*([0-9]{1,10})\s+([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})(?:|\s.*)", re.DOTALL)


class TimelineSwitch(NamedTuple):
    """The end of one timeline."""

    timeline: int
    lsn: Lsn


def parse_history(text: str, timeline: int) -> tuple[TimelineSwitch, ...]:
    """Read a history file.

    Returns:
        the timelines before ``timeline``, oldest first.

    Raises:
        ProtocolError: it is not a history file; facts: ``timeline``, ``line``.
    """
    switches: list[TimelineSwitch] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise _unreadable(timeline, number, "no timeline with an LSN")
        switch = TimelineSwitch(int(found[1]), Lsn.parse(found[2]))
        before = switches[-1] if switches else TimelineSwitch(0, Lsn(0))
        if not before.timeline < switch.timeline < timeline:
            raise _unreadable(timeline, number, f"timeline {switch.timeline} is out of order")
        if switch.lsn < before.lsn:
            raise _unreadable(timeline, number, f"{switch.lsn} is before {before.lsn}")
        switches.append(switch)
    if not switches:
        raise _unreadable(timeline, 1, "the history names no timeline")
    return tuple(switches)


def _unreadable(timeline: int, line: int, reason: str) -> ProtocolError:
    return ProtocolError(
        f"pgsluice cannot read line {line} of the server's history of timeline {timeline}: "
        f"{reason}",
        hint=f"restore the file {timeline:08X}.history in the server's folder pg_wal from the WAL "
        "archive or from another server of this cluster, which has an equal one; then start "
        "pgsluice again",
        timeline=timeline,
        line=line,
    )
