"""Capture the examples of ``docs/decode.md`` again, and write what decode says of them there.

    python scripts/decode_examples.py

The bytes are PostgreSQL 18's, from a walsender; ``debug_logical_replication_streaming`` makes
it stream a transaction that is small enough to be read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.corpus import SETTINGS, Receiver

from pgsluice.embedded import EmbeddedServer
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "decode.md"
EXAMPLE = re.compile(r"(```console\n\$ (pgsluice decode [^\n|]*)\n).*?(```)", re.DOTALL)

Session = psycopg.Connection[Any]
Settle = Callable[[], None]


def main() -> None:
    """Capture, and write the page's examples."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    immediate = {"debug_logical_replication_streaming": "immediate"}
    with EmbeddedServer(18, settings=SETTINGS) as server:
        capture(server, "transaction", transaction, PgoutputOptions(("shop",), proto_version=1))
    with EmbeddedServer(18, settings=SETTINGS | immediate) as server:
        capture(server, "stream", stream, PgoutputOptions(("shop",)))
    with EmbeddedServer(18, settings=SETTINGS) as server:
        capture(server, "prepared", prepared, PgoutputOptions(("shop",), two_phase=True))
    PAGE.write_text(
        EXAMPLE.sub(lambda match: match[1] + run(match[2]) + match[3], PAGE.read_text())
    )


def run(command: str) -> str:
    """What a command of the page prints."""
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def capture(
    server: EmbeddedServer,
    name: str,
    work: Callable[[Session, Settle], None],
    options: PgoutputOptions,
) -> None:
    """Run the work while a walsender sends, and keep what it sends as rows like psql's."""
    dsn = server.dsn()
    with psycopg.connect(server.dsn("template1"), autocommit=True) as elsewhere:
        elsewhere.execute("CREATE TABLE t ()")
    with (
        psycopg.connect(dsn, autocommit=True) as session,
        ReplicationConnection.connect(dsn) as walsender,
    ):
        session.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'glad');"
            "CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(8, 2), m mood);"
            "CREATE PUBLICATION shop FOR TABLE orders"
        )
        slot = walsender.create_slot("s", two_phase=options.two_phase)
        walsender.start_replication(slot.name, slot.consistent_point, options)
        receiver = Receiver(walsender)

        def settle() -> None:
            """Wait until all that was done so far is decoded: a commit flushes it, in another
            database, which is not decoded here."""
            with psycopg.connect(server.dsn("template1"), autocommit=True) as flusher:
                flusher.execute("INSERT INTO t DEFAULT VALUES")
                row = flusher.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            receiver.await_end(Lsn.parse(row[0]))

        work(session, settle)
        settle()
    rows = [f" {message.lsn} | \\x{message.data.hex()}\n" for message in receiver.messages]
    path = PAGE.with_suffix("") / f"{name}.txt"
    path.write_text("    lsn    | data\n-----------+------\n" + "".join(rows))


def transaction(session: Session, settle: Settle) -> None:
    """One row."""
    session.execute("INSERT INTO orders VALUES (1, 'Ada Lovelace', 12.5, 'glad')")


def stream(session: Session, settle: Settle) -> None:
    """Two savepoints, of which one is rolled back."""
    for step in (
        "BEGIN; INSERT INTO orders VALUES (2, 'before', 1, NULL)",
        "SAVEPOINT kept; INSERT INTO orders VALUES (3, 'kept', 2, NULL)",
        "SAVEPOINT dropped; INSERT INTO orders VALUES (4, 'dropped', 3, NULL)",
        "ROLLBACK TO dropped; UPDATE orders SET id = 5 WHERE id = 3",
        "COMMIT",
    ):
        session.execute(step)
        settle()


def prepared(session: Session, settle: Settle) -> None:
    """One that is committed, one that is rolled back."""
    session.execute("BEGIN; INSERT INTO orders VALUES (6, 'kept', 1, 'sad')")
    session.execute("PREPARE TRANSACTION 'order-6'")
    session.execute("COMMIT PREPARED 'order-6'")
    session.execute("BEGIN; DELETE FROM orders WHERE id = 6")
    session.execute("PREPARE TRANSACTION 'no-6'")
    session.execute("ROLLBACK PREPARED 'no-6'")


if __name__ == "__main__":
    main()
