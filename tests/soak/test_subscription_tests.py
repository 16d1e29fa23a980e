"""PostgreSQL's own subscription tests, told for a lake: every scenario, four ways on 18 and 16.

With the server's publications and with pgsluice's own; as it comes, and with every transaction
streamed before its end. ``PGSLUICE_SCENARIOS`` takes a regular expression for their names. What
has no meaning for a lake is listed in tests/soak/subscription_tests/scenarios.sql.
"""

from __future__ import annotations

import os
import re

import pytest
from tests.soak.report import Report
from tests.soak.subscription_tests.runner import Run
from tests.soak.subscription_tests.scenario import Scenario, read_scenarios
from tests.support.databases import MakeDatabase, Servers
from tests.support.pipeline import MakePipeline

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

STREAMED = ("debug_logical_replication_streaming = immediate",)


def chosen(version: int, *, is_own: bool) -> list[Scenario]:
    pattern = os.environ.get("PGSLUICE_SCENARIOS", "")
    return [
        scenario
        for scenario in read_scenarios()
        if scenario.since <= version
        and not (is_own and scenario.is_server_only)
        and re.search(pattern, scenario.name)
    ]


def test_every_scenario_has_a_name_of_its_own() -> None:
    slugs = [scenario.slug for scenario in read_scenarios()]
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize("version", [18, 16], ids="pg{}".format)
@pytest.mark.parametrize("settings", [(), STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("publications", ["server", "own"])
def test_scenarios(
    publications: str,
    settings: tuple[str, ...],
    version: int,
    servers: Servers,
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
) -> None:
    is_own = publications == "own"
    scenarios = chosen(version, is_own=is_own)
    if not scenarios:
        pytest.skip("no scenario is chosen")
    how = ", every transaction streamed" if settings else ""
    what = (
        f"PostgreSQL's subscription tests, {publications} publications{how}, PostgreSQL {version}"
    )
    with report.row(what, 0) as row:
        one = pipeline(database(servers(version)))
        wrong = Run(one, scenarios, is_own=is_own, settings=settings).run()
        failed = [f"{name}: {faults}" for name, faults in wrong.items() if faults]
        assert not failed, "\n".join(failed)
        row["figures"] = f"{len(scenarios)} scenarios in one run"
        row["shown"] = f"{len(scenarios)} as PostgreSQL's files expect"
