"""A role gets by with the rights that are printed, and each one that is missing is printed."""

from __future__ import annotations

from tests.support.commands import Command
from tests.support.rights import REVOKED, MakeRole, paste_until_ready, printed_statements

from pgsluice.embedded import EmbeddedServer

pytest_plugins = ["tests.support.rights"]


def test_pasting_what_is_printed_is_enough(
    make_role: MakeRole, each_server: EmbeddedServer, pgsluice: Command
) -> None:
    role = make_role(each_server)
    pasted = paste_until_ready(role, pgsluice)
    assert pasted[:2] == [
        f"ALTER ROLE {role.sql_name} LOGIN;",
        f"GRANT CONNECT ON DATABASE {role.database.name} TO {role.sql_name};",
    ]
    assert pgsluice("capture", role.path, "--once").code == 0
    # A table of somebody else is created later.
    role.as_superuser("CREATE TABLE later (id int PRIMARY KEY)")
    for command in "check", "status":  # one round with the owner is enough
        needed = [s for s in printed_statements(pgsluice(command, role.path).out) if "later" in s]
        assert [s.split()[0] for s in needed] == ["ALTER", "GRANT"], command
    later = paste_until_ready(role, pgsluice)
    assert any("ADD TABLE" in statement and "later" in statement for statement in later)
    outcome = pgsluice("drop", role.path, "--yes")
    assert outcome.code == 0, outcome.err
    assert role.database.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_each_right_that_is_missing_is_printed(make_role: MakeRole, pgsluice: Command) -> None:
    role = make_role()
    paste_until_ready(role, pgsluice)
    for right, revoke in REVOKED.items():
        role.as_superuser(revoke.format(role=role.sql_name, database=role.database.name))
        (statement,) = paste_until_ready(role, pgsluice)
        assert right in statement


def test_drop_without_the_rights_drops_the_rest_and_says_what_is_left(
    make_role: MakeRole, pgsluice: Command
) -> None:
    role = make_role()
    paste_until_ready(role, pgsluice)
    assert pgsluice("capture", role.path, "--once").code == 0
    second = f"{role.database.name}_insert"
    role.as_superuser(f"ALTER PUBLICATION {second} OWNER TO postgres")
    outcome = pgsluice("drop", role.path, "--yes")
    assert outcome.code == 1, "something is left"
    assert "looked again" not in outcome.out
    before, _, after = outcome.out.partition("dropped the slot")
    assert printed_statements(before) == printed_statements(after) != [], "said before and after"
    assert not (role.path.parent / "spool").exists()
    assert role.database.execute("SELECT pubname FROM pg_publication") == [(second,)]
    role.as_superuser(*printed_statements(after))
    assert role.database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert pgsluice("drop", role.path, "--yes").code == 0


def test_drop_by_a_role_whose_sessions_may_not_write(
    make_role: MakeRole, pgsluice: Command
) -> None:
    role = make_role()
    paste_until_ready(role, pgsluice)
    assert pgsluice("capture", role.path, "--once").code == 0
    role.as_superuser(REVOKED["read_only"].format(role=role.sql_name))
    outcome = pgsluice("drop", role.path, "--yes")
    assert outcome.code == 1, "something is left"
    assert not (role.path.parent / "spool").exists()
    role.as_superuser(*printed_statements(outcome.out.partition("dropped the slot")[2]))
    assert role.database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
