"""The table of DDL, whole, as looks at the catalog see it: what do they ask to copy?

A row whose outcome is a copy has to be asked for by a look, or marked to be verified, which
finds the difference. A row that costs nothing must not be. ``make soak AREA=ddl`` has streams
and targets.
"""

from __future__ import annotations

import pytest
from tests.subscription.ddl_looks import Looks
from tests.support.databases import MakeDatabase
from tests.support.ddl.batch import prepare
from tests.support.ddl.known_gaps import known_gap
from tests.support.ddl.row import Moment, Outcome, Publisher
from tests.support.ddl.table import ROWS

FITS = {
    Outcome.NOTHING: {Outcome.NOTHING},
    Outcome.ADDED: {Outcome.NOTHING},
    Outcome.IN_PLACE: {Outcome.NOTHING},
    Outcome.VERIFIED: {Outcome.VERIFIED},
    Outcome.REPLACED: {Outcome.REPLACED},
    Outcome.COPIED: {Outcome.COPIED, Outcome.VERIFIED},
}
"""Outcome of a row -> what looks may ask for; anything where the outcome is not here."""


@pytest.mark.pg(">= 12")
@pytest.mark.parametrize("moment", [Moment.ONE_POLL, Moment.SEVERAL_POLLS])
@pytest.mark.parametrize("publisher", Publisher)
def test_what_looks_copy(publisher: Publisher, moment: Moment, database: MakeDatabase) -> None:
    source = database()
    prepare(source)
    version = int(source.server.version.partition(".")[0])
    rows = [r.on(version) for r in ROWS if r.publisher is publisher and r.runs_at(moment, version)]
    seen = Looks(source, rows).run(looks_between=moment is Moment.SEVERAL_POLLS)
    wrong = [
        f"{row.name}: {row.outcome(moment).value}, but {seen[row.name].value}"
        for row in rows
        if known_gap(row.name, moment)[0] is None
        and seen[row.name] not in FITS.get(row.outcome(moment), Outcome)
    ]
    assert not wrong, "\n".join(wrong)
