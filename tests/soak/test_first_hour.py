"""docs/first-hour.md, step by step, as a role that has only the rights that were printed."""

from __future__ import annotations

import pytest
from tests.soak.report import Report
from tests.support.commands import Command
from tests.support.databases import Servers
from tests.support.rights import REVOKED, MakeRole, paste_until_ready, printed_rights

pytestmark = pytest.mark.soak
pytest_plugins = ["tests.support.commands", "tests.support.rights"]
_ORDERS = '"Shop"."Order Lines"'


@pytest.mark.parametrize("version", [18, 12])
def test_the_first_hour(
    version: int,
    servers: Servers,
    make_role: MakeRole,
    pgsluice: Command,
    report: Report,
    seed: int,
) -> None:
    with report.row(f"the first hour, PostgreSQL {version}", seed) as row:
        role = make_role(servers(version))
        pasted = paste_until_ready(role, pgsluice)
        role.as_superuser(f"INSERT INTO {_ORDERS} SELECT generate_series(1, 1000)")
        _run(role.path, pgsluice)
        role.as_superuser(f"UPDATE {_ORDERS} SET id = id + 10000 WHERE id <= 10")
        _run(role.path, pgsluice)
        for right, revoke in REVOKED.items():
            role.as_superuser(revoke.format(role=role.sql_name, database=role.database.name))
            (statement,) = printed_rights(pgsluice("check", role.path).out)
            assert right in statement
            role.as_superuser(statement)
            _run(role.path, pgsluice)
        outcome = pgsluice("drop", role.path, "--yes")
        assert outcome.code == 0, outcome.err
        row["figures"] = f"{len(pasted)} statements pasted; {len(REVOKED)} rights missing in turn"
        row["shown"] = "each is printed, pasted and gone; run and verify end with 0 after each"


def _run(path: object, pgsluice: Command) -> None:
    for command in (["run", path, "--once"], ["verify", path]):
        outcome = pgsluice(*command)
        assert outcome.code == 0, outcome.err
