"""The script of docs/outbox.md reads each event once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from tests.support.capturing import await_end
from tests.support.databases import Database, MakeDatabase

PAGE = Path(__file__).parents[2] / "docs" / "outbox.md"
SCRIPT = re.compile(
    r"<!-- tested by tests/docs/test_outbox\.py -->\n```python\n(.*?)```", re.DOTALL
)
TRANSACTION = re.compile(r"```sql\n(.*?)```", re.DOTALL)


def script(shop: Database, folder: Path) -> str:
    """The page's script, with the test's server, slot and folders."""
    (text,) = SCRIPT.findall(PAGE.read_text())
    server = conninfo_to_dict(shop.dsn)
    url = f"postgresql://{server['user']}@{server['host']}:{server['port']}/{shop.name}"
    ours = {
        'dsn="postgresql://app@db/shop"': f"dsn={url!r}",
        'slot="outbox"': f"slot={shop.name!r}, publications={shop.name!r}",
        'spool="outbox/spool"': f"spool={str(folder / 'spool')!r}",
        '_deltatable("events")': f"_deltatable({str(folder / 'events')!r})",
        'DeltaTable("events")': f"DeltaTable({str(folder / 'events')!r})",
        '"events", batch': f"{str(folder / 'events')!r}, batch",
        '"checkpointLocation", "outbox/checkpoint"': (
            f"'checkpointLocation', {str(folder / 'checkpoint')!r}"
        ),
    }
    for theirs, our in ours.items():
        assert text.count(theirs) == 1, f"{theirs} is missing in the page's script"
        text = text.replace(theirs, our)
    return text


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.pg(">= 14")
def test_the_script_of_the_page(spark: Any, database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, state text)")
    shop.execute("INSERT INTO orders VALUES (17, 'new')")
    code = compile(script(shop, tmp_path), str(PAGE), "exec")
    exec(code, {})  # registers the subscription, so that nothing is missed from here on
    (transaction,) = TRANSACTION.findall(PAGE.read_text())
    shop.execute(transaction)
    with shop.connect() as connection:
        connection.execute(transaction.replace("COMMIT", "ROLLBACK"))
    exec(code, {})
    shop.execute(transaction.replace("17", "18"))
    names: dict[str, Any] = {}
    exec(code, names)
    again = [("order.paid", 18, 0, 0, None)]
    names["keep"](spark.createDataFrame(again, names["events"].schema), 1)
    rows = DeltaTable(str(tmp_path / "events")).to_pyarrow_table().to_pylist()
    rows.sort(key=lambda row: (row["position"], row["ordinal"]))
    assert [(row["event"], row["order"], row["ordinal"]) for row in rows] == [
        ("order.paid", 17, 1),
        ("order.paid", 18, 0),
    ]
    await_end(tmp_path / "spool")
