"""``verify``: how often a run compares the tables of a subscription with the source."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pgsluice.config.section import Seconds, Section, Size

LEAST_RATE = 2**20
"""In bytes per second: a read between two pauses is twice as much."""


class VerifyConfig(Section):
    """``verify``: the schedule on which a run compares tables with their targets.

    Attributes:
        every: how often each table is verified; the first time is soon after its copy.
        rate: how much of the source a verification reads per second, 1 MiB or more; default: no
            limit.
    """

    every: Annotated[Seconds, Field(gt=0)]
    rate: Annotated[Size, Field(ge=LEAST_RATE)] | None = None
