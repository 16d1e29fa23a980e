"""Keys of many types and tables of many shapes, copied, streamed and verified.

Without Spark, which has no part in what a key is.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.key_types import KEY_TYPES
from tests.support.pipeline import MakePipeline
from tests.support.verifying import verify

pytestmark = pytest.mark.usefixtures("spark")

KEYS = (
    "float8s", "decimals", "long_numerics", "chars", "moments", "intervals", "documents",
    "raw_documents", "numeric_ranges", "text_arrays", "float_arrays", "composites",
)  # fmt: skip
SHAPES = """
    CREATE TABLE parted (id int, part int, v text, w text, PRIMARY KEY (id, part))
        PARTITION BY LIST (part);
    CREATE TABLE low PARTITION OF parted FOR VALUES IN (1);
    CREATE TABLE high PARTITION OF parted FOR VALUES IN (2);
    CREATE TABLE orders (id int PRIMARY KEY, v text, w text, dropped int);
    CREATE TABLE bookings (
        room int4range, during daterange, v text, PRIMARY KEY (room, during WITHOUT OVERLAPS));
"""


@pytest.mark.pg(">= 18")
def test_keys_of_many_types_and_shapes_of_tables(
    database: MakeDatabase,
    pipeline: MakePipeline,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Copied and streamed; also with the filters and lists of both sides, and a temporal key.

    A key for a table that is not sent is a warning.
    """
    one = pipeline(shop := database())
    kinds = [kind for kind in KEY_TYPES if kind.name in KEYS]
    shop.execute(
        SHAPES,
        *(statement for kind in kinds for statement in kind.statements),
        f"CREATE PUBLICATION {shop.name} FOR TABLE {', '.join(KEYS)}, bookings,"
        " low (id, part, v), high (id, part, w), orders WHERE (id > 2)",
    )
    (one.folder / "own.sql").write_text(
        "CREATE PUBLICATION own FOR TABLE orders (id, v) WHERE (id < 90)"
    )
    decimals = 'types = { "public.decimals.k" = "decimal(38,10)" }\n'
    one.write(
        f'{decimals}key = {{ "public.raw_documents" = ["k"], "public.order" = ["id"] }}\n'
        '[publications]\nfile = "own.sql"\n'
        '[[subscription]]\nname = "filtered"\npublications = ["own"]\n'
        'sink = { type = "delta", path = "filtered/{schema}/{table}" }'
    )
    rows = "INSERT INTO {} SELECT i, {} FROM generate_series({}) i"
    shop.execute(
        rows.format("parted", "i % 2 + 1, 'v' || i, 'w' || i", "1, 20"),
        rows.format("orders", "'v' || i, 'w' || i, i", "1, 100"),
        "INSERT INTO bookings SELECT int4range(r, r + 1), daterange('2024-01-01', NULL), 'v'"
        " FROM generate_series(1, 9) r",
    )
    changes = {kind.name: kind.random_changes(1, 20) for kind in kinds}
    shop.execute(*(one for transactions in changes.values() for one in transactions[:10]))
    one.once()
    (said,) = (text for text in caplog.messages if "which is not sent" in text)
    assert said.startswith('lake: "key" names the table public.order, which is not sent\n')
    assert said.endswith("→ did you mean public.orders?")

    shop.execute(
        *(one for transactions in changes.values() for one in transactions[10:]),
        "UPDATE parted SET v = 'new', w = 'new' WHERE id < 9",
        "UPDATE parted SET part = 3 - part WHERE id > 15",
        "ALTER TABLE orders DROP dropped",
        "UPDATE orders SET id = id + 50 WHERE id > 80",
        "DELETE FROM orders WHERE id % 7 = 0",
        "UPDATE bookings SET during = daterange('2024-01-01', '2025-01-01') WHERE room @> 3",
        "UPDATE bookings SET room = int4range(20, 30), v = 'moved' WHERE room @> 4",
        "DELETE FROM bookings WHERE room @> 5",
    )
    for subscription, tables in (("lake", 3 + len(KEYS)), ("filtered", 1)):
        code, results = verify(one, capsys, "--subscription", subscription)
        assert code == 0, {name: r for name, r in results.items() if not r["equal"]}
        assert len(results) == tables
    assert "dropped" in one.delta("orders").schema().to_json()
    one.assert_equal(*KEYS, "bookings")
