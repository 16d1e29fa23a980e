"""What is printed to a user works as printed: pasted beside the live run, and the problem is gone.

Each row of :data:`TROUBLES` is a table with a problem. All share one run of a role that is no
superuser. The texts are read where users read them, from ``status``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg.conninfo import make_conninfo
from tests.pipeline.remedies import Trouble, find, is_gone, paste, printed
from tests.support.commands import Command
from tests.support.commands import pgsluice as pgsluice
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline, Pipeline

_QUERY = re.compile(r"(SELECT .* HAVING count\(\*\) > 1)")


def _write_beside(one: Pipeline, _: Command) -> None:
    rows = pa.table({"id": pa.array([7], pa.int32())})
    write_deltalake(one.lake / "public" / "written", rows, mode="append")
    one.database.execute("INSERT INTO written VALUES (2)")


def _restore(one: Pipeline, _: Command) -> None:
    one.database.execute("INSERT INTO restored VALUES (2)")
    one.wait_until(lambda: one.delta("restored").to_pyarrow_table().num_rows == 2)
    one.delta("restored").restore(0)
    one.database.execute("INSERT INTO restored VALUES (3)")


def _revoke(one: Pipeline, pgsluice: Command) -> None:
    one.database.execute(f"REVOKE SELECT ON revoked FROM {one.database.name}_app")
    assert pgsluice("copy", one.path, "public.revoked", "--yes").code == 1


def _move_away(one: Pipeline, text: str) -> None:
    place = find(re.compile(r"(\S+) already has a table that"), text)
    shutil.move(place.removeprefix("file://"), one.folder / "moved")


def _remove_file(one: Pipeline, text: str) -> None:
    assert "move that file away" in text
    (one.lake / "public" / "walled").unlink()


def _mount(one: Pipeline, text: str) -> None:
    """The store comes back."""
    assert "mount the disk that the link names" in text
    place = find(re.compile(r": (\S+) is a file, or a link"), text)
    Path(place).readlink().mkdir(parents=True)


def _delete_twins(one: Pipeline, text: str) -> None:
    for (value,) in one.database.execute(find(_QUERY, text)):
        one.database.execute(
            f"DELETE FROM twins WHERE v = {value} AND id > (SELECT min(id) FROM twins)"
        )


def _rename(one: Pipeline, text: str) -> None:
    assert "rename one of them in PostgreSQL" in text
    one.database.execute('ALTER TABLE cased RENAME "V" TO w')


def _change_row(one: Pipeline, text: str) -> None:
    assert "change the row filter, or the row in PostgreSQL" in text
    one.database.execute("UPDATE filtered SET v = 5 WHERE v = 0")


TROUBLES = (
    Trouble(
        "unfit_date",
        "CREATE TABLE {} (id int PRIMARY KEY, v date)",
        "INSERT INTO {} VALUES (1, 'infinity')",
        paste=("setting", "command"),
    ),
    Trouble(
        "unfit_array",
        "CREATE TABLE {} (id int PRIMARY KEY, v int[])",
        "INSERT INTO {} VALUES (1, '{{1,2},{3,4}}')",
        paste=("setting", "command"),
    ),
    Trouble(
        '"Odd Name"',
        'CREATE TABLE {} (id int PRIMARY KEY, "a.b" timestamp)',
        "INSERT INTO {} VALUES (1, '-infinity')",
        paste=("setting", "command"),
    ),
    Trouble(
        "identified",
        "CREATE TABLE {} (id int PRIMARY KEY, u int NOT NULL UNIQUE); INSERT INTO {} VALUES (1, 1)",
        "ALTER TABLE {} REPLICA IDENTITY USING INDEX identified_u_key; UPDATE {} SET id = 2",
        paste=("setting", "command"),
    ),
    Trouble(
        "keyless",
        "CREATE TABLE {} (id int NOT NULL UNIQUE, v text); INSERT INTO {} VALUES (1, 'a')",
        printed="incomplete",
        paste=("statements",),
    ),
    Trouble(
        "twins",
        "CREATE TABLE {} (id int PRIMARY KEY, v int); ALTER TABLE {} REPLICA IDENTITY FULL",
        "INSERT INTO {} VALUES (1, 7), (2, 7)",
        paste=(_delete_twins, "command"),
    ),
    Trouble(
        "cased",
        "CREATE TABLE {} (id int PRIMARY KEY, v text)",
        "ALTER TABLE {} ADD \"V\" text; INSERT INTO {} VALUES (1, 'a', 'b')",
        paste=(_rename, "command"),
    ),
    Trouble(
        "occupied",
        "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)",
        paste=(_move_away, "command"),
    ),
    Trouble(
        "walled",
        "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)",
        paste=(_remove_file,),
    ),
    Trouble(
        "away", "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)", paste=(_mount,)
    ),
    Trouble(
        "written", "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)", _write_beside
    ),
    Trouble(
        "restored", "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)", _restore
    ),
    Trouble(
        "revoked",
        "CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)",
        _revoke,
        paste=("statements",),
    ),
    Trouble(
        "filtered",
        "CREATE TABLE {} (id int PRIMARY KEY, v int)",
        "INSERT INTO {} VALUES (1, 0)",
        paste=(_change_row, "command"),
        subscription="chosen",
    ),
    Trouble(
        "of_another_owner",
        trouble="RESET ROLE; CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)",
        printed="needed",
        paste=("statements",),
    ),
    Trouble(
        '"Order Lines"',
        trouble='RESET ROLE; CREATE SCHEMA "Their Shop"; CREATE TABLE {} (id int PRIMARY KEY);'
        " INSERT INTO {} VALUES (1)",
        printed="needed",
        paste=("statements",),
        schema="Their Shop",
    ),
    Trouble(
        "after_the_owner_changed",
        trouble="RESET ROLE; ALTER PUBLICATION {db} OWNER TO postgres; SET ROLE {db}_app;"
        " CREATE TABLE {} (id int PRIMARY KEY); INSERT INTO {} VALUES (1)",
        printed="needed",
        paste=("statements",),
    ),
)
_OWN = """
[[subscription]]
name = "chosen"
publications = ["ten"]
sink = { type = "delta", path = "chosen/{schema}/{table}" }
"""


@pytest.fixture
def shop(database: MakeDatabase) -> Iterator[Database]:
    """A database with a role that makes the tables, and that pgsluice connects as."""
    made = database()
    role = f"{made.name}_app"
    made.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {made.name} TO {role}",
        f"GRANT ALL ON SCHEMA public TO {role}",
    )
    yield made
    made.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def _execute(one: Pipeline, statements: str, trouble: Trouble) -> None:
    """As the role."""
    text = statements.replace("{db}", one.database.name).replace("{}", trouble.sql_name)
    one.database.execute(f"SET ROLE {one.database.name}_app; {text}")


def _are_copied(one: Pipeline, troubles: list[Trouble]) -> bool:
    """Whether each table is copied, or says why it is not."""
    names = {trouble.subscription for trouble in troubles}
    if not all((one.spool / "subscriptions" / name / "record.json").exists() for name in names):
        return False
    copied = {
        (name, table.title)
        for name in names
        for table in one.record(name).tables.values()
        if table.is_active or table.error
    }
    return copied >= {(trouble.subscription, trouble.title) for trouble in troubles}


def _make(one: Pipeline, trouble: Trouble, pgsluice: Command) -> None:
    match trouble.trouble:
        case str(statements):
            _execute(one, statements, trouble)
        case make:
            make(one, pgsluice)


def _prepare(one: Pipeline, shop: Database) -> None:
    one.write('key = { "public.twins" = ["v"] }\n' + _OWN)
    text = one.path.read_text().replace(shop.dsn, make_conninfo(shop.dsn, user=f"{shop.name}_app"))
    one.path.write_text(text + '[publications]\nfile = "own.sql"\n')
    (one.folder / "own.sql").write_text(
        "CREATE PUBLICATION ten FOR TABLE filtered WHERE (10 / v > 1);"
    )
    write_deltalake(one.lake / "public" / "occupied", pa.table({"id": [1]}))
    (one.lake / "public" / "walled").write_text("a file")
    (one.lake / "public" / "away").symlink_to(one.folder / "unmounted" / "away")
    for trouble in TROUBLES:
        _execute(one, trouble.before, trouble)


def _await_printed(one: Pipeline, trouble: Trouble, pgsluice: Command) -> str:
    """What is printed about a trouble; while its table is tried again, nothing may be."""
    texts = [""]

    def is_printed() -> bool:
        texts[0] = printed(one, trouble, pgsluice)
        return bool(texts[0])

    one.wait_until(is_printed, why=f"something is printed about {trouble.title}")
    return texts[0]


@pytest.mark.usefixtures("local_spark")
def test_a_printed_remedy_is_pasted_beside_the_run_and_the_problem_is_gone(
    shop: Database, pipeline: MakePipeline, pgsluice: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """In the end a setting is changed that is read at a start only."""
    one = pipeline(shop)
    one.subscription_options = 'on_unrepresentable = "fail"'
    one.write()
    _prepare(one, shop)
    with one.live():
        before = [trouble for trouble in TROUBLES if trouble.before]
        one.wait_until(lambda: _are_copied(one, before), why="all are copied")
        for trouble in before:
            _make(one, trouble, pgsluice)
        for trouble in TROUBLES:
            if trouble not in before:
                _make(one, trouble, pgsluice)
            text = _await_printed(one, trouble, pgsluice)
            assert "CONFIG" not in text
            assert "…" not in text
            paste(one, trouble, text, pgsluice)
        for trouble in TROUBLES:
            one.wait_until(
                lambda trouble=trouble: is_gone(one, trouble),
                why=f"{trouble.title} is replicated again",
            )
        assert re.search(r"read pgsluice.toml again; in force from now on: .*types", caplog.text)
        one.path.write_text(
            one.path.read_text().replace("catalog_poll_s = 1", "catalog_poll_s = 2")
        )
        outcome = pgsluice("copy", one.path, "written")
        assert re.search(
            r"restart the run for \S.*catalog_poll_s: it read pgsluice.toml at \d\d:\d\d",
            outcome.out + outcome.err,
        ), outcome
        one.wait_applied()
    with shop.connect() as connection:
        for trouble in TROUBLES:
            assert_equal(connection, trouble.title, one.folder / trouble.folder)
