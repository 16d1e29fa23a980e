"""The README's examples work as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
from psycopg.conninfo import conninfo_to_dict
from tests.support.capturing import await_end
from tests.support.databases import Database, MakeDatabase

from pgsluice.lsn import Lsn

README = Path(__file__).parents[2] / "README.md"
SCRIPT = re.compile(
    r"<!-- tested by tests/docs/test_readme\.py -->\n```python\n(.*?)```", re.DOTALL
)


def script(shop: Database, folder: Path) -> str:
    """The README's script, with the test's server and folders."""
    (text,) = SCRIPT.findall(README.read_text())
    server = conninfo_to_dict(shop.dsn)
    ours = {
        '"postgresql://app@db/shop"': repr(
            f"postgresql://{server['user']}@{server['host']}:{server['port']}/{shop.name}"
        ),
        '"spool"': repr(str(folder / "spool")),
        '"changes"': repr(str(folder / "changes")),
        '"checkpoint"': repr(str(folder / "checkpoint")),
    }
    for theirs, our in ours.items():
        # The spool's option has its own name as its value.
        place = f", {theirs}" if theirs != '"changes"' else theirs
        assert text.count(place) == 1, f"{theirs} is missing in the README's script"
        text = text.replace(place, place.replace(theirs, our))
    return text


def test_the_script_of_the_readme(spark: Any, database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(8,2), placed timestamptz)",
        "INSERT INTO orders VALUES (0, 0.50, NULL)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    code = compile(script(shop, tmp_path), str(README), "exec")
    exec(code, {})  # has the rows of the table, and nothing is missed from here on
    shop.execute(
        "INSERT INTO orders VALUES (1, 1.50, now()), (2, 2.50, NULL)",
        "UPDATE orders SET amount = 9 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
    )
    exec(code, {})
    published = shop.execute("SELECT DISTINCT tablename FROM pg_publication_tables")
    assert published == [("orders",)], "the slot sends the changes of the stream's table only"
    rows = changes(tmp_path)
    assert [(row["_change_type"], row["id"], str(row["amount"])) for row in rows] == [
        ("insert", 0, "0.50"),
        ("insert", 1, "1.50"),
        ("insert", 2, "2.50"),
        ("update_postimage", 2, "9.00"),
        ("delete", 1, "None"),
    ]
    assert list(rows[0]) == [
        "id", "amount", "placed",
        "_change_type", "_commit_version", "_commit_timestamp", "_ordinal", "_xid", "_key",
        "_absent", "_unfit", "_unfit_text",
    ]  # fmt: skip
    assert set(rows[4]["_absent"]) == {"amount", "placed"}
    exec(code, {})
    assert len(changes(tmp_path)) == len(rows), "without new changes nothing is written again"
    await_end(tmp_path / "spool")


def changes(folder: Path) -> list[dict[str, Any]]:
    """The rows that the query wrote, in the source's order."""
    table = pyarrow.parquet.read_table(folder / "changes")
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["_commit_version"], row["_ordinal"]))


def test_a_range_of_the_spool(spark: Any, database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    code = compile(script(shop, tmp_path), str(README), "exec")
    exec(code, {})
    for number in range(4):
        shop.execute(f"INSERT INTO orders VALUES ({number})")
    exec(code, {})
    ends = [Lsn(row["_commit_version"]) for row in changes(tmp_path)]

    def ids(**options: str) -> list[int]:
        frame = spark.read.format("pgoutput").options(
            spool=str(tmp_path / "spool"), table="public.orders", **options
        )
        return sorted(row.id for row in frame.load().select("id").collect())

    # The spool keeps what the query may ask for again after a crash.
    assert ids(starting_lsn=str(ends[0]), ending_lsn=str(ends[2])) == [1, 2]
    assert ids(starting_lsn=str(ends[2])) == [3]
    assert ids(ending_lsn=str(ends[1])) == [0, 1]
    assert ids(starting_lsn=str(ends[3])) == []
