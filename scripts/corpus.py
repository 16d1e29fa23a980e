"""``make corpus``: capture the golden corpus again, from servers 10 to 18.

    python scripts/corpus.py [VERSION ...]

On each server the workload runs once for each set of pgoutput's options, while a walsender
sends; the sets cover each pair of options that the server knows. What came is written to
``tests/corpus/<version>/``, see the README there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import corpus_workload

from pgsluice.cli.decode.follow import Follower, Raw
from pgsluice.cli.decode.objects import to_object
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SourceRefused
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.wire import Keepalive, StandbyStatusUpdate, XLogData, decode_copy_data

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpus"
VERSIONS = (10, 11, 12, 13, 14, 15, 16, 17, 18)
CHOICES = {
    "proto_version": (1, 2, 3, 4),
    "streaming": ("off", "on", "parallel"),
    "two_phase": (False, True),
    "binary": (False, True),
    "messages": (True, False),
    "origin": ("any", "none"),
}
SETTINGS = {"fsync": "off", "max_prepared_transactions": "20", "autovacuum": "off"}
_TIMEOUT_S = 60
_NOWHERE = Lsn(0)

Choice = dict[str, object]


def main() -> None:
    """Capture for the versions named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", type=int, help="of servers; default: all")
    for version in parser.parse_args().versions or VERSIONS:
        settings = SETTINGS | ({"logical_decoding_work_mem": "64kB"} if version >= 13 else {})
        folder = CORPUS / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        index = []
        with EmbeddedServer(version, settings=settings) as server:
            with psycopg.connect(server.dsn(), autocommit=True) as session:
                session.execute("SELECT pg_replication_origin_create('elsewhere')")
            for choice in option_sets(version):
                messages = capture(server, version, choice)
                index.append(write(folder, server.version, choice, messages))
        text = json.dumps(index, indent=1)
        (folder / "index.json").write_text(text + "\n")


def option_sets(version: int) -> Iterator[Choice]:
    """Sets of options that the server takes, such that each pair of values is in one of them."""
    possible = [
        choice
        for values in itertools.product(*CHOICES.values())
        if is_possible(version, choice := dict(zip(CHOICES, values, strict=True)))
    ]
    missing = set().union(*(pairs(choice) for choice in possible))
    while missing:
        best = max(possible, key=lambda choice: len(pairs(choice) & missing))
        missing -= pairs(best)
        yield best


def is_possible(version: int, choice: Choice) -> bool:
    """Whether the server takes these options."""
    if version < 15 and choice["two_phase"]:
        return False
    if version < 14 and choice["messages"]:  # not an option there: said once, as off
        return False
    try:
        options(choice, ("p",)).resolve(version * 10000)
    except SourceRefused:
        return False
    return True


def pairs(choice: Choice) -> set[tuple[object, ...]]:
    """The pairs of values in a set of options."""
    return set(itertools.combinations(choice.items(), 2))


def options(choice: Choice, publications: tuple[str, ...]) -> PgoutputOptions:
    """As START_REPLICATION is given them.

    A slot made with two_phase sends prepared transactions at every version of the protocol;
    the option of that name is known from version 3 on.
    """
    proto = int(str(choice["proto_version"]))
    two_phase = bool(choice["two_phase"]) and proto >= 3
    return PgoutputOptions(publications, **{**choice, "two_phase": two_phase})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Received:
    """A message and where it lies (0/0 where the server does not tell)."""

    lsn: Lsn
    data: bytes


class Receiver:
    """The walsender's other end: keeps every message, acknowledges nothing."""

    def __init__(self, walsender: ReplicationConnection) -> None:
        self._walsender = walsender
        self.messages: list[Received] = []
        self._end = _NOWHERE

    def await_end(self, end: Lsn) -> None:
        """Wait until the server has sent everything up to ``end``."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._end < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server did not come to {end}")
            frame = self._walsender.receive()
            if frame is None:
                status = StandbyStatusUpdate(_NOWHERE, _NOWHERE, _NOWHERE, 0, True)
                self._walsender.send_status(status)
                self._walsender.wait(0.2)
                continue
            match decode_copy_data(frame):
                case XLogData() as one:
                    self.messages.append(Received(one.start, bytes(one.data)))
                case Keepalive() as one:
                    self._end = one.end


def capture(server: EmbeddedServer, version: int, choice: Choice) -> list[Received]:
    """Run the workload in a database of its own, and return what the server sends of it."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE corpus")
        dsn = server.dsn("corpus")
        with (
            psycopg.connect(dsn, autocommit=True) as first,
            psycopg.connect(dsn, autocommit=True) as second,
            ReplicationConnection.connect(dsn) as walsender,
        ):
            publications = corpus_workload.create(first, version)
            slot = walsender.create_slot("corpus", two_phase=bool(choice["two_phase"]))
            walsender.start_replication(
                slot.name, slot.consistent_point, options(choice, publications)
            )
            receiver = Receiver(walsender)
            corpus_workload.run(first, second, version, receiver)
            row = first.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            receiver.await_end(Lsn.parse(row[0]))
            walsender.finish()
            walsender.drop_slot("corpus")
        admin.execute("DROP DATABASE corpus")
    return receiver.messages


def write(folder: Path, server: str, choice: Choice, messages: list[Received]) -> dict[str, object]:
    """Write one capture; its entry in the index."""
    values = choice.items()
    words = [f"proto{choice['proto_version']}"]
    words += [f"streaming_{choice['streaming']}"] if choice["streaming"] != "off" else []
    words += [name for name, value in values if value is True]
    words += ["origin_none"] if choice["origin"] == "none" else []
    name = "-".join(words)
    follower = Follower(is_parallel=choice["streaming"] == "parallel")
    rows, objects = [], []
    for message in messages:
        rows.append(f"{message.lsn}|\\x{message.data.hex()}\n")
        seen = follower.take(Raw(message.data, 0, 1, name, lsn=message.lsn))
        objects.append(json.dumps(to_object(seen, follower), ensure_ascii=False) + "\n")
    for suffix, lines in ((".txt.xz", rows), (".jsonl.xz", objects)):
        content = "".join(lines).encode()
        (folder / f"{name}{suffix}").write_bytes(lzma.compress(content, preset=9))
    counts = Counter(chr(message.data[0]) for message in messages)
    print(f"{server} {name}: {len(messages)} messages, {dict(sorted(counts.items()))}", flush=True)
    return {
        "name": name,
        "server": server,
        "options": choice,
        "messages": dict(sorted(counts.items())),
    }


if __name__ == "__main__":
    main()
