"""The operations of one worker in the shop: small transactions, chosen at random.

Each worker changes only customers, products and shelves of its own, so that workers rarely
wait for each other. Every operation returns how many changes of each kind it made.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

Done = Counter[str]


class _Undo(Exception):
    """Raised to make a transaction roll back on purpose."""


class Shopper:
    """One worker on one connection.

    Args:
        large: rows of :meth:`import_orders`.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        rng: random.Random,
        *,
        worker: int,
        workers: int,
        large: int = 50_000,
    ) -> None:
        self._connection = connection
        self._rng = rng
        self._worker = worker
        self._workers = workers
        self._large = large
        self._made = 0

    def choose(self) -> Callable[[Shopper], Done]:
        """The next operation."""
        return self._rng.choices(list(_OPERATIONS), list(_OPERATIONS.values()))[0]

    # Customers

    def sign_up(self) -> Done:
        """Insert a customer."""
        return self._changed(
            "inserts",
            "INSERT INTO customers (token, name, preferences, tags, balance, born)"
            " VALUES (%s, %s, %s, %s, %s, date '1970-01-01' + %s::int)",
            self._uuid(), self._word(12), Jsonb({"lang": self._word(2), "n": None}),
            [self._word(3), None, "a b", ""], self._cents(5_000), self._rng.randrange(15_000),
        )  # fmt: skip

    def edit_customer(self) -> Done:
        """Update a customer."""
        return self._changed(
            "updates",
            "UPDATE customers SET tier = %s, balance = balance + %s, tags = %s,"
            " preferences = coalesce(preferences, '{}') || %s WHERE id = %s",
            self._rng.choice(["guest", "regular", "gold"]), self._cents(900),
            self._rng.choice([None, [], [self._word(4)], ["{x}", 'say "hi"', "\\"]]),
            Jsonb({self._word(1): self._rng.random()}), self._own_customer(),
        )  # fmt: skip

    def close_account(self) -> Done:
        """Delete a customer."""
        statement = "DELETE FROM customers WHERE id = %s"
        return self._changed("deletes", statement, self._own_customer())

    # Products, with big values out of line

    def insert_product(self, sku: str | None = None) -> Done:
        """Insert a product with a manual of some kilobytes."""
        rng = self._rng
        return self._changed(
            "inserts",
            "INSERT INTO products VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            sku or self._new_sku(), self._word(15), self._cents(50_000), rng.random() * 10,
            rng.choice([rng.random() * 5, None, float("nan")]),
            rng.choice([None, [], [36, None, 44]]), Jsonb({"colour": self._word(4)}),
            rng.choice([None, b"", rng.randbytes(2_500)]), self._manual(),
        )  # fmt: skip

    def reprice(self) -> Done:
        """Update a product but not its manual, which the stream then leaves out."""
        statement = "UPDATE products SET price = %s, rating = %s WHERE sku = %s"
        values = self._cents(50_000), self._rng.random() * 5
        return self._changed("updates", statement, *values, self._own_product())

    def rewrite_manual(self) -> Done:
        """Update the manual itself."""
        statement = "UPDATE products SET manual = %s WHERE sku = %s"
        manual = self._rng.choice([self._manual(), None, "short"])
        return self._changed("updates", statement, manual, self._own_product())

    def rename_product(self) -> Done:
        """Change only a product's key."""
        statement = "UPDATE products SET sku = %s WHERE sku = %s"
        return self._changed("key changes", statement, self._new_sku(), self._own_product())

    def replace_product(self) -> Done:
        """Delete a product and insert another with the same key, in one transaction."""
        with self._connection.transaction():
            row = self._connection.execute(
                "DELETE FROM products WHERE sku = %s RETURNING sku",
                [self._own_product()],
            ).fetchone()
            if row is None:
                return Counter()
            return self.insert_product(row[0]) + Counter(deletes=1)

    # Shelves, whose keys are swapped

    def insert_shelf(self, place: int) -> Done:
        """Insert a shelf with a big label."""
        statement = "INSERT INTO shelves VALUES (%s, %s, %s)"
        sku = f"seed-{self._rng.randrange(100)}"
        return self._changed("inserts", statement, place, sku, self._manual())

    def swap_shelves(self) -> Done:
        """Swap two keys in one transaction, without touching the big labels."""
        with self._connection.transaction():
            rows = self._connection.execute(
                "SELECT place FROM shelves WHERE place %% %s = %s ORDER BY md5(place || %s)"
                " LIMIT 2 FOR UPDATE",
                [self._workers, self._worker, self._word(6)],
            ).fetchall()
            if len(rows) < 2:
                return Counter()
            (a,), (b,) = rows
            for before, after in ((a, -1 - self._worker), (b, a), (-1 - self._worker, b)):
                self._connection.execute(
                    "UPDATE shelves SET place = %s WHERE place = %s", [after, before]
                )
        return Counter({"key swaps": 1})

    # Orders, which move between partitions

    def place_order(self, lines: int | None = None) -> Done:
        """Insert an order with its lines, in one transaction."""
        lines = lines or self._rng.randint(1, 6)
        with self._connection.transaction():
            row = self._connection.execute(
                "INSERT INTO orders VALUES (nextval('order_ids'), 'new', %s, %s, %s,"
                " clock_timestamp(), localtimestamp + interval '3 days') RETURNING id",
                [self._rng.randrange(2_000), self._cents(90_000), self._word(20)],
            ).fetchone()
            assert row is not None
            self._add_lines(row[0], lines)
        return Counter(inserts=1 + lines)

    def advance_order(self) -> Done:
        """Advance an order's status, which is part of its key and decides its partition."""
        return self._changed(
            "moves between partitions",
            "UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN"
            " 'shipped' ELSE 'done' END::order_status WHERE id = (SELECT id FROM orders"
            " WHERE id >= %s AND id %% %s = %s AND status <> 'done' ORDER BY id LIMIT 1)",
            *(self._rng.randrange(4_000), self._workers, self._worker),
        )

    def cancel_order(self) -> Done:
        """Delete an order and its lines, in one transaction."""
        with self._connection.transaction():
            row = self._connection.execute(
                "DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE id >= %s"
                " AND id %% %s = %s ORDER BY id LIMIT 1) RETURNING id",
                [self._rng.randrange(4_000), self._workers, self._worker],
            ).fetchone()
            if row is None:
                return Counter()
            lines = self._connection.execute("DELETE FROM order_lines WHERE order_id = %s", row)
        return Counter(deletes=1 + lines.rowcount)

    def change_mind(self) -> Done:
        """Roll a whole transaction back."""
        with self._undone():
            self.place_order()
            self.reprice()
        return Counter({"rolled back": 1})

    def hesitate(self) -> Done:
        """Commit a transaction with two savepoints, one of them rolled back."""
        with self._connection.transaction():
            self.place_order(1)
            with self._undone():
                self.place_order(2)
                self.edit_customer()
            with self._connection.transaction():
                self.place_order(3)
        return Counter({"savepoints": 2, "inserts": 6})

    def import_orders(self) -> Done:
        """Commit a large transaction: many new lines, some changed or deleted again."""
        with self._connection.transaction():
            row = self._connection.execute("SELECT nextval('order_ids')").fetchone()
            assert row is not None
            # Order numbers that the sequence never reaches.
            first = 1_000_000_000 + row[0] * 100_000
            self._connection.execute(
                "INSERT INTO order_lines (order_id, line, sku, quantity, price, note)"
                " SELECT %s + i / 10, i %% 10, 'seed-' || i %% 100, i, i / 100.0, 'import'"
                " FROM generate_series(0, %s) i",
                [first, self._large - 1],
            )
            changed = self._connection.execute(
                "UPDATE order_lines SET quantity = -1 WHERE order_id >= %s AND line = 3", [first]
            )
            deleted = self._connection.execute(
                "DELETE FROM order_lines WHERE order_id >= %s AND line = 7", [first]
            )
        rows = Counter(inserts=self._large, updates=changed.rowcount, deletes=deleted.rowcount)
        return rows + Counter({"large transactions": 1})

    # Carts, rates, page views

    def fill_cart(self) -> Done:
        """Insert a cart, or update the existing one."""
        items = [self._word(5) for _ in range(self._rng.randint(0, 4))]
        return self._changed(
            "upserts",
            "INSERT INTO carts VALUES (%s, %s, %s, localtimestamp, '20:00:00.5')"
            " ON CONFLICT (customer) DO UPDATE SET items = excluded.items,"
            " quantities = excluded.quantities, touched = excluded.touched",
            *(self._rng.randrange(2_000), items, [1] * len(items)),
        )

    def clear_carts(self) -> Done:
        """Insert, then TRUNCATE and insert again in one transaction."""
        self.fill_cart()
        with self._connection.transaction():
            self._connection.execute("TRUNCATE carts")
            filled = self._connection.execute(
                "INSERT INTO carts SELECT i, '{}', '{}', localtimestamp, NULL"
                " FROM generate_series(1, 50) i"
            )
        return Counter(truncates=1, inserts=filled.rowcount)

    def move_rates(self) -> Done:
        """Update the exchange rates of several currencies with one statement."""
        return self._changed(
            "updates",
            "UPDATE rates SET rate = rate * %s::numeric, day = day + 1 WHERE currency LIKE %s",
            *(f"1.0{self._rng.randrange(10)}", self._rng.choice(["A%", "B%", "%AX"])),
        )

    def browse(self) -> Done:
        """Insert page views, which have no key."""
        views = self._rng.randint(5, 40)
        return self._changed(
            "inserts",
            "INSERT INTO page_views SELECT clock_timestamp(), '/p/' || i, %s, i * %s"
            " FROM generate_series(1, %s) i",
            *(self._uuid(), self._rng.random(), views),
        )

    # Steps that operations share

    def _changed(self, kind: str, statement: LiteralString, *values: Any) -> Done:
        """Execute a statement, and count the rows that it changes."""
        return Counter({kind: self._connection.execute(statement, values).rowcount})

    def _add_lines(self, order: int, lines: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO order_lines (order_id, line, sku, quantity, price, note)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                [
                    (order, line, f"seed-{self._rng.randrange(100)}", self._rng.randint(1, 9),
                     self._cents(9_000), self._rng.choice([None, "", "é ✓"]))
                    for line in range(1, lines + 1)
                ],
            )  # fmt: skip

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A transaction, or a savepoint within one, that is rolled back."""
        try:
            with self._connection.transaction():
                yield
                raise _Undo
        except _Undo:
            pass

    def _own_customer(self) -> int | None:
        """A random customer of this worker's."""
        customer: int | None = self._pick(
            "SELECT id FROM customers WHERE id %% %s = %s ORDER BY md5(id::text || %s) LIMIT 1"
        )
        return customer

    def _own_product(self) -> str | None:
        """A random product of this worker's, decided by its name, which never changes."""
        sku: str | None = self._pick(
            "SELECT sku FROM products WHERE (hashtext(name) & 1023) %% %s = %s"
            " ORDER BY md5(sku || %s) LIMIT 1"
        )
        return sku

    def _pick(self, query: LiteralString) -> Any:
        parameters = [self._workers, self._worker, self._word(6)]
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128))

    def _word(self, length: int) -> str:
        return "".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz é", k=length))

    def _cents(self, most: int) -> str:
        return f"{self._rng.randrange(most)}.{self._rng.randrange(100):02d}"

    def _new_sku(self) -> str:
        self._made += 1
        return f"sku-{self._worker}-{self._made}-{self._rng.getrandbits(32):08x}"

    def _manual(self) -> str:
        return self._rng.randbytes(self._rng.randint(1_200, 3_000)).hex()


_OPERATIONS: dict[Callable[[Shopper], Done], int] = {
    Shopper.sign_up: 8,
    Shopper.edit_customer: 14,
    Shopper.close_account: 3,
    Shopper.insert_product: 4,
    Shopper.reprice: 14,
    Shopper.rewrite_manual: 3,
    Shopper.rename_product: 4,
    Shopper.replace_product: 2,
    Shopper.swap_shelves: 4,
    Shopper.place_order: 16,
    Shopper.advance_order: 12,
    Shopper.cancel_order: 3,
    Shopper.change_mind: 3,
    Shopper.hesitate: 2,
    Shopper.fill_cart: 8,
    Shopper.move_rates: 2,
    Shopper.browse: 10,
}

#: Operations that every run makes at least once, in this order.
EVENTS: tuple[Callable[[Shopper], Done], ...] = (
    Shopper.rename_product,
    Shopper.swap_shelves,
    Shopper.change_mind,
    Shopper.hesitate,
    Shopper.clear_carts,
    Shopper.advance_order,
    Shopper.replace_product,
    Shopper.import_orders,
    Shopper.close_account,
    Shopper.cancel_order,
)
