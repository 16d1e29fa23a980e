"""One matrix of kills: each mode, both ways of merging, disk and store, each failpoint.

The matrix needs no JVM. Real runs with Spark, whose workers and drivers are killed, are in
tests/soak/test_modes.py.
"""

from __future__ import annotations

import random

import pytest
from tests.soak.kills.places import State
from tests.soak.kills.rounds import Kills
from tests.soak.kills.tables import KEYLESS, MODES
from tests.soak.report import Report
from tests.support.databases import MakeDatabase
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline

from pgsluice.subscription.verify import Verification, verify

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("place", ["disk", "store"])
@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_at_each_place_changes_nothing(
    request: pytest.FixtureRequest,
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
    mode: str,
    merge: str,
    place: str,
) -> None:
    """The next run ends with the source's rows, each reject once, and a consistent checkpoint."""
    one = pipeline(database())
    one.sink_options = f', merge = "{merge}"'
    one.subscription_options = MODES[mode]
    if place == "store":
        store: ObjectStore = request.getfixturevalue("s3_store")
        one.have_store(store)
        one.have_spool_in_store(store)
    one.write()
    kills = Kills(one, mode, place == "store", random.Random(seed))
    with report.row(f"runs killed at each place, {mode}, {merge}, {place}", seed) as row:
        kills.run()
        [subscription] = one.config.subscriptions
        for each in verify(one.config, subscription, Verification()):
            assert each.comparison is not None, each
            assert each.comparison.equal, each.comparison
        places = {name for name, _ in kills.done}
        states = ", ".join(f"{kills.states[state]} {state}" for state in State)
        row["figures"] = (
            f"{kills.states.total()} SIGKILLs at {len(places)} failpoints, in"
            f" {len({round_ for _, round_ in kills.done})} kinds of runs: {states}"
        )
        row["shown"] = (
            "after each: the source's rows (logs and histories: at each transaction)"
            f"{'' if mode == KEYLESS else ', each reject once'};"
            f" {len(kills.checkpoints)} consistent checkpoints"
        )
