"""A password that changes while a run works: no change is lost, and the password is nowhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, fresh_database
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline

from pgsluice.config import load_config
from pgsluice.config.values.dsn import join_conninfo
from pgsluice.errors import ConfigError, SourceRefused, SourceUnreachable
from pgsluice.replication import connect_sql

_PASSWORDS = ("first-s3cret", "second-s3cret")
_ACCEPTED = "refused the password of app, and accepts the one that password_command prints"
_HBA = """
host all,replication app 127.0.0.1/32 scram-sha-256
host all,replication postgres 127.0.0.1/32 trust
"""


@pytest.fixture
def shop() -> Iterator[Database]:
    """A database in which the role app has to give a password."""
    with CopiedServer(settings={"fsync": "off"}) as server, fresh_database(server) as made:
        (server.data_dir / "pg_hba.conf").write_text(_HBA)
        made.execute(
            f"CREATE ROLE app SUPERUSER LOGIN PASSWORD '{_PASSWORDS[0]}'",
            "SELECT pg_reload_conf()",
            "CREATE TABLE t (id serial PRIMARY KEY, v text)",
            "INSERT INTO t (v) VALUES ('first')",
        )
        yield made


@pytest.mark.usefixtures("local_spark")
def test_a_password_changes_while_a_run_works(
    shop: Database,
    pipeline: MakePipeline,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    one = pipeline(shop)
    secret = one.folder / "secret"
    secret.write_text(_PASSWORDS[0] + "\n")
    text = one.path.read_text().replace("postgres", "app", 1)
    command = f'password_command = "cat {secret}"'
    one.path.write_text(text.replace("[source]", f"[source]\n{command}"))
    assert "user=app" in load_config(one.path).source.dsn
    with one.live():
        one.wait_applied()
        shop.execute(
            f"ALTER ROLE app PASSWORD '{_PASSWORDS[1]}'",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
            "INSERT INTO t (v) VALUES ('while the command prints the password of before')",
        )
        secret.write_text(_PASSWORDS[1] + "\n")
        shop.execute("INSERT INTO t (v) VALUES ('later')")
        one.wait_applied()
        # The session that looks at the catalog connects again, too.
        one.wait_until(lambda: _ACCEPTED in caplog.text, why="the log has a line")
        arguments = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                arguments.append(path.read_bytes())
    one.assert_equal("t")
    log = caplog.text + "".join(capfd.readouterr())
    files = [path.read_bytes() for path in one.spool.rglob("*") if path.is_file()]
    for password in _PASSWORDS:
        assert password not in log
        assert not [each for each in (*files, *arguments) if password.encode() in each]


def test_a_command_that_fails_or_prints_what_is_refused_says_so(
    shop: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    dsn = shop.server.dsn(shop.name, user="app")
    calls = tmp_path / "calls"
    with pytest.raises(SourceRefused, match="password authentication failed") as caught:
        connect_sql(join_conninfo(dsn, f"echo x >> {calls}; echo wrong-s3cret"))
    assert caught.value.hint is not None
    assert "printed the same password" in caught.value.hint
    assert calls.read_text() == "x\nx\n", "it was called again once"
    for command, how in (
        ("echo s3cret >&2; exit 3", "ended with exit code 3"),
        ("true", "nothing"),
    ):
        with pytest.raises(SourceUnreachable, match=how) as failed:
            connect_sql(join_conninfo(dsn, command))
        assert "s3cret" not in str(failed.value)
    with connect_sql(join_conninfo(dsn, f"echo {_PASSWORDS[0]}; echo more")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("app",)
    assert "s3cret" not in caplog.text


def test_two_passwords_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(
        '[source]\ndsn = "host=db password=s3cret"\npassword_command = "true"\n'
        '[spool]\npath = "spool"\n'
    )
    with pytest.raises(ConfigError, match='has a password in "dsn"') as caught:
        load_config(path)
    assert "s3cret" not in str(caught.value)
