"""The table of DDL, whole, as looks at the catalog see it: what do they ask to copy?

A row whose outcome is a copy has to be asked for by a look, unless the stream parks it; a row
that costs nothing must not be. Targets and streams are in ``make soak AREA=ddl``.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.ddl.batch import prepare
from tests.support.ddl.known_gaps import known_gap
from tests.support.ddl.looking import Looks
from tests.support.ddl.row import Moment, Outcome, Publisher
from tests.support.ddl.table import ROWS

KEEPS = (Outcome.NOTHING, Outcome.ADDED, Outcome.IN_PLACE, Outcome.VERIFIED)


@pytest.mark.pg(">= 12")
@pytest.mark.parametrize("moment", [Moment.ONE_POLL, Moment.SEVERAL_POLLS])
@pytest.mark.parametrize("publisher", [Publisher.PGSLUICE, Publisher.SERVER])
def test_what_looks_copy(publisher: Publisher, moment: Moment, database: MakeDatabase) -> None:
    source = database()
    prepare(source)
    version = int(source.server.version.partition(".")[0])
    rows = [r for r in ROWS if r.publisher is publisher and r.runs_at(moment, version)]
    copied = Looks(source, rows).run(looks_between=moment is Moment.SEVERAL_POLLS)
    wrong = [
        f"{row.name}: {row.outcome(moment).value}, {'' if copied[row.name] else 'not '}copied"
        for row in rows
        if known_gap(row.name, moment)[0] is None
        and (
            (row.outcome(moment) is Outcome.COPIED and not copied[row.name])
            or (row.outcome(moment) in KEEPS and copied[row.name])
        )
    ]
    assert not wrong, "\n".join(wrong)
