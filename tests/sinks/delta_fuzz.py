"""Random steps on a Delta table, beside a dict that has the rows it must have.

Steps are ours (merges, whole or in pieces that tasks share, crashes, attempts at once, upkeep,
other columns and types, copies, a change of the merging way) and those of others (OPTIMIZE, append,
delete, RESTORE, checkpoint, vacuum), by deltalake and, if there is a session, by Spark.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from tests.sinks.delta_duckdb import duckdb_rows
from tests.support.delta_spark import DeltaSpark, delta_spark
from tests.support.store_proxy import Fault, Request, store_proxy

from pgsluice import failpoints
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.errors import TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, TargetTable
from pgsluice.sinks.delta import upkeep
from pgsluice.sinks.delta.log import reading
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake import mapped_files, row_cache
from pgsluice.sinks.lake import upkeep as lake_upkeep
from pgsluice.sinks.lake.keys import index, sidecars
from pgsluice.sinks.lake.merge import net_merge
from pgsluice.stores import remote
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import identity

Key = tuple[Any, ...]
_FAULTS = tuple(fault for fault in Fault if fault is not Fault.HANG)
_FAULTY = 0.02
"""Of all requests."""
Row = dict[str, Any]

TEXTS = ("a", "b'", "", "\u2028x", "\u0085", "ü\U0010ffff", "x" * 40)
"""Parts of texts; some end a line for ``str.splitlines``, and for no log."""

SPARK_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING"}

KEYS: dict[str, tuple[pa.Schema, Callable[[int], Key]]] = {
    "integer": (pa.schema([pa.field("id", pa.int64(), False)]), lambda n: (n,)),
    "text": (
        pa.schema([pa.field("id", pa.string(), False)]),
        lambda n: (TEXTS[n % len(TEXTS)] + str(n),),
    ),
    "composite": (
        pa.schema([pa.field("id", pa.int32(), False), pa.field("part", pa.string(), False)]),
        lambda n: (n // 7, TEXTS[n % 7]),
    ),
}


class StoredPlace(NamedTuple):
    """A folder in an object store.

    Attributes:
        url: of the folder.
        writing: options of our own steps; a proxy may be in between.
        reading: options of all others.
    """

    url: str
    writing: dict[str, str]
    reading: dict[str, str]


class DeltaFuzz:
    """One table and its model.

    Args:
        folder: an empty folder.
        seed: of the random steps.
        kind: of the key, one of KEYS.
        keys: how many different keys there are.
        spark: takes some of the steps; None: without these steps.
        place: where the table lies; None: in the folder.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        kind: str,
        keys: int = 60,
        spark: DeltaSpark | None = None,
        place: StoredPlace | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.spark = spark
        self.key_schema, self.make_key = KEYS[kind]
        self.keys = keys
        self.numbers: Sequence[int] = range(keys)
        """Of the keys that the next changes may have."""
        self.cache = folder / "keys"
        self.place = place
        self.options = place.reading if place else {}
        self.sink = DeltaSink(
            f"{place.url if place else folder}/{{table}}",
            foreign_writes="allow",
            merge="on_read",
            cache_dir=str(self.cache),
            storage_options=place.writing if place else {},
        )
        self.location = self.sink.location("public", "t")
        self.columns = [*self.key_schema, pa.field("a", pa.int32()), pa.field("big", pa.string())]
        self.copy = 1
        self.position = 100
        self.counter = 0
        self.touched: set[Key] = set()
        self.model: dict[Key, Row] = {}
        self.history: dict[int, tuple[pa.Schema, dict[Key, Row]]] = {}
        self.done: Counter[str] = Counter()
        self._load()
        self.check()

    def run(self, steps: int) -> None:
        """Do random steps; compare the table with the model after each."""
        chances = {
            self._merge: 36, self._merge_in_pieces: 4, self._at_once: 4,
            self._crash_before: 4, self._crash_after: 4, self._crash_between: 4,
            self._foreign_optimize: 3, self._foreign_append: 3, self._foreign_delete: 3,
            self._restore: 2, self._checkpoint: 2, self._vacuum: 2, self._lose_sidecars: 2,
            self._forget_the_log: 3, self._add_column: 0.5, self._widen_column: 0.5,
            self._change_the_way: 3, self._load: 0.5, self._truncate: 1,
        }  # fmt: skip
        if self.spark is not None:
            chances.update({
                self._spark_optimize: 0.2, self._spark_purge: 0.1, self._spark_vacuum: 0.1,
                self._spark_append: 0.2, self._spark_delete: 0.2, self._spark_update: 0.2,
                self._spark_restore: 0.2, self._spark_checkpoint: 0.2,
            })  # fmt: skip
        for step in self.random.choices(list(chances), list(chances.values()), k=steps):
            try:
                step()
                self.check()
                if step.__name__.startswith("_spark"):
                    self.check_by_spark()
            except Exception as error:
                error.add_note(f"step {self.done.total()}: {step.__name__}; {dict(self.done)}")
                raise
            self.done[step.__name__.removeprefix("_")] += 1

    def check_by_all(self) -> None:
        """Compare with all readers that know vectors."""
        self.check()
        expected = sorted(map(comparable, self.model.values()))
        by_sql = QueryBuilder().register("t", self._table()).execute("SELECT * FROM t")
        rows = pa.RecordBatchReader.from_stream(by_sql).read_all().to_pylist()
        assert sorted(map(comparable, rows)) == expected
        assert sorted(map(comparable, duckdb_rows(self.location, self.options))) == expected
        self.check_by_spark()

    def check_by_spark(self) -> None:
        """Compare with Spark, if there is a session."""
        if self.spark is not None:
            rows = self.spark.rows(f"SELECT * FROM delta.`{self.location}`")
            assert sorted(map(comparable, rows)) == sorted(map(comparable, self.model.values()))

    def check(self) -> None:
        """Compare with deltalake's engine. Each fourth time it reads the whole log, and polars the
        table, too."""
        expected = sorted(map(comparable, self.model.values()))
        if self.done.total() % 4 == 0:
            self.reader = self._table()
            by_polars = pl.read_delta(self.location, storage_options=self.options).to_dicts()
            assert sorted(map(comparable, by_polars)) == expected
        else:
            self.reader.update_incremental()
        table = self.reader
        assert sorted(map(comparable, _rows(table))) == expected
        self.history[table.version()] = (self._schema(), self._copied_model())

    # Our own steps.

    def _merge(self) -> None:
        self._apply(self._net())

    def _merge_in_pieces(self) -> None:
        """As a large batch: two tasks stage the changes of some keys each, and one commits them."""
        shares = []
        for first in (0, 1):
            self.numbers = range(first, self.keys, 2)
            shares.append([self._net() for _ in range(self.random.randint(0, 3))])
        self.numbers = range(self.keys)
        staged = [self._writer().stage_changes(pieces) for pieces in shares]
        writer, position = self._writer(), self._next_position()
        self._have_applied(writer, writer.commit_changes(staged, position), position)

    def _truncate(self) -> None:
        self._apply(self._net(truncate=True))

    def _crash_before(self) -> None:
        self._crash("delta.before_commit")

    def _crash_after(self) -> None:
        self._crash("delta.after_commit")

    def _crash_between(self) -> None:
        """Fail after some file has been written, or before it is on the disk: of the merge, its
        commit, or the upkeep."""
        net, position = self._net(), self._next_position()
        of_place = [("store.upload", 6), ("store.put", 3)] if self.place else [("store.sync", 15)]
        place, most = self.random.choice([("delta.written", 6), *of_place])
        with self._failing(f"{place}=eio@{self.random.randint(1, most)}"):
            writer = self._writer()
            applied = writer.apply(net, position)
            writer.maintain([max(0, applied.version - 3)])
        self._writer().apply(net, position)

    def _crash(self, place: str) -> None:
        net, position = self._net(), self._next_position()
        with self._failing(f"{place}=eio"):
            self._writer().apply(net, position)
        self._writer().apply(net, position)

    @contextmanager
    def _failing(self, failpoint: str) -> Iterator[None]:
        """The disk fails at a place of the block, which ends there; at times it leaves its files,
        as if it was killed."""
        failpoints.arm(failpoint + self.random.choice(["", ",delta.clean_up=eio"]))
        try:
            with suppress(TargetUnreachable):
                yield
        finally:
            failpoints.arm("")

    def _at_once(self) -> None:
        net, position = self._net(), self._next_position()
        writers = [self._writer(), self._writer()]
        for writer in writers:
            writer.position()
        with ThreadPoolExecutor(2) as pool:
            applied = list(pool.map(lambda writer: writer.apply(net, position), writers))
        assert sorted(one.skipped for one in applied) == [False, True]

    def _add_column(self) -> None:
        name = f"c{len(self.columns)}"
        value = self.random.choice([None, 7])
        self.columns.append(pa.field(name, pa.int32()))
        added = AddedColumn(self.columns[-1], pa.scalar(value, pa.int32()))
        writer = self._writer()
        writer.position()
        writer.alter([added], ())
        for row in self.model.values():
            row[name] = value

    def _widen_column(self) -> None:
        narrow = [i for i, column in enumerate(self.columns) if column.type == pa.int32()
                  and column.name.startswith("c")]  # fmt: skip
        if narrow:
            place = self.random.choice(narrow)
            self.columns[place] = self.columns[place].with_type(pa.int64())
            writer = self._writer()
            writer.position()
            writer.alter((), [self.columns[place]])

    def _change_the_way(self) -> None:
        way = self.random.choice(["on_read", "on_read", "auto", "on_write"])
        self.sink = replace(self.sink, merge=way)
        self._merge()

    def _load(self) -> None:
        self.copy += 1
        numbers = self.random.sample(range(self.keys), self.keys // 2)
        rows = [self._row(self.make_key(number)) for number in numbers]
        self.model = {self._key(row): row for row in rows}
        batches = pa.Table.from_pylist(rows, self._schema()).to_batches(max_chunksize=20)
        self._writer().load(batches, self._next_position())

    def _lose_sidecars(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        index.OPENED = mapped_files.OpenFiles(sidecars.Sidecar)
        row_cache.OPENED = mapped_files.OpenFiles(row_cache.KeptGroup)
        self._merge()

    def _forget_the_log(self) -> None:
        reading.KNOWN_TABLES.clear()
        remote.CACHE = remote.ByteCache()
        self._merge()

    # The steps of others.

    def _foreign_optimize(self) -> None:
        table = self._table()
        if self.random.random() < 0.5:
            table.optimize.compact()
        else:
            table.optimize.z_order(["a"])

    def _foreign_append(self) -> None:
        rows = pa.Table.from_pylist([self._new_row()], self._schema())
        write_deltalake(self.location, rows, mode="append", storage_options=self.options)

    def _new_row(self) -> Row:
        """A row with a key that no row has had; the model gets it, too."""
        row = self._row(self.make_key(self.keys + self.counter))
        self.counter += 1
        self.model[self._key(row)] = row
        return row

    def _foreign_delete(self) -> None:
        limit = self.random.randrange(1000)
        self._table().delete(f"a < {limit} and a >= {limit - 50}")
        self.model = {
            key: row for key, row in self.model.items() if not limit - 50 <= row["a"] < limit
        }

    def _restore(self) -> None:
        version = self._version_to_restore()
        if version is not None and not self._has_another_protocol(version):
            self._table().restore(version)
            self._have_restored(version)

    def _version_to_restore(self) -> int | None:
        """A recent version with the same columns that can still be read; None: not this time."""
        version = self.random.choice(list(self.history))
        schema, _ = self.history[version]
        newest = self._table().version()
        if not newest - 8 <= version < newest or schema != self._schema():
            return None
        # Its files may be deleted already; a RESTORE does not look for those of vectors.
        with suppress(DeltaError, pa.ArrowInvalid):
            _rows(self._table(version))
            return version
        return None

    def _has_another_protocol(self, version: int) -> bool:
        """Whether the table had other features: deltalake panics when it restores such a version,
        because it joins the versions of both protocols with the features of one."""
        older = self._table(version).protocol()
        return bool(older != self._table().protocol())

    def _have_restored(self, version: int) -> None:
        _, model = self.history[version]
        self.model = {key: dict(row) for key, row in model.items()}

    def _checkpoint(self) -> None:
        self._table().create_checkpoint()

    def _vacuum(self) -> None:
        with suppress(CommitFailedError):
            self._table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=False)

    # The steps of others, by Spark.

    def _spark_optimize(self) -> None:
        self._by_spark("OPTIMIZE {}")

    def _spark_purge(self) -> None:
        self._by_spark("REORG TABLE {} APPLY (PURGE)")

    def _spark_vacuum(self) -> None:
        self._by_spark("VACUUM {} RETAIN 0 HOURS")

    def _spark_append(self) -> None:
        values = (
            f"CAST({_literal(value)} AS {SPARK_TYPES[column.type]})"
            for value, column in zip(self._new_row().values(), self.columns, strict=True)
        )
        self._by_spark(f"INSERT INTO {{}} VALUES ({', '.join(values)})")

    def _spark_delete(self) -> None:
        limit = self.random.randrange(1000)
        self._by_spark(f"DELETE FROM {{}} WHERE a >= {limit - 50} AND a < {limit}")
        self.model = {
            key: row for key, row in self.model.items() if not limit - 50 <= row["a"] < limit
        }

    def _spark_update(self) -> None:
        limit = self.random.randrange(1000)
        self._by_spark(f"UPDATE {{}} SET a = 1 WHERE a >= {limit - 50} AND a < {limit}")
        for row in self.model.values():
            if limit - 50 <= row["a"] < limit:
                row["a"] = 1

    def _spark_restore(self) -> None:
        if (version := self._version_to_restore()) is not None:
            self._by_spark(f"RESTORE TABLE {{}} TO VERSION AS OF {version}")
            self._have_restored(version)

    def _spark_checkpoint(self) -> None:
        assert self.spark is not None
        self.spark.checkpoint(self.location)

    def _by_spark(self, statement: str) -> None:
        assert self.spark is not None
        self.spark.sql(statement.format(f"delta.`{self.location}`"))

    # What the steps share.

    def _table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.location, version=version, storage_options=self.options)

    def _writer(self) -> TableWriter:
        table = TargetTable("public", "t", self._schema(), tuple(self.key_schema.names))
        return TableWriter(self.sink, table, identity(copy=self.copy))

    def _apply(self, net: NetChanges) -> None:
        net_merge.LARGE_SHARE = self.random.choice([0.2, 1.0])
        position = self._next_position()
        writer = self._writer()
        self._have_applied(writer, writer.apply(net, position), position)

    def _have_applied(self, writer: TableWriter, applied: Applied, position: Lsn) -> None:
        assert not applied.skipped
        writer.maintain([max(0, applied.version - 3)])
        assert self._writer().position() == position

    def _next_position(self) -> Lsn:
        self.position += 1
        return Lsn(self.position)

    def _net(self, *, truncate: bool = False) -> NetChanges:
        """Random changes; the model gets them, too."""
        schema, key = self._schema(), tuple(self.key_schema.names)
        changes = ChangesBuilder(schema, key)
        if truncate:
            changes.truncate()
            self.model = {}
        self.touched = set()
        for _ in range(self.random.choice([1, 3, 10, 30])):
            self._change(changes)
        return net_changes([changes.build()], schema=schema, key=key, is_complete=False)

    def _change(self, changes: ChangesBuilder) -> None:
        at = self.make_key(self.random.choice(self.numbers))
        row = self._row(at)
        action = self.random.random()
        self.touched.add(at)
        if action < 0.35:  # also over a row that is there
            self.model[at] = row
            changes.insert(row)
        elif action < 0.6:
            self._update(changes, at, row)
        elif action < 0.8:
            self.model.pop(at, None)
            changes.delete(dict(zip(self.key_schema.names, at, strict=True)))
        else:
            self._move(changes, at)

    def _update(self, changes: ChangesBuilder, at: Key, row: Row) -> None:
        sent = dict(row)
        if self.random.random() < 0.5:
            sent["big"] = ABSENT
            row["big"] = self.model.get(at, row)["big"]
        if at in self.model:
            self.model[at] = row
        changes.update(sent)

    def _move(self, changes: ChangesBuilder, at: Key) -> None:
        """Change a row's key to one that no row of the source has: a batch that updates a row
        which the target lacks says that the source has it."""
        taken = self.model.keys() | self.touched
        free = [key for key in map(self.make_key, self.numbers) if key not in taken]
        if at not in self.model or not free:
            return
        to = self.random.choice(free)
        self.touched.add(to)
        row = self._row(to)
        row["big"] = self.model.pop(at)["big"]
        self.model[to] = row
        old = dict(zip(self.key_schema.names, at, strict=True))
        changes.update({**row, "big": ABSENT}, old=old)

    def _row(self, key: Key) -> Row:
        values: Row = dict(zip(self.key_schema.names, key, strict=True))
        values["a"] = self.random.randrange(1000)
        values["big"] = self.random.choice(TEXTS) * 3
        for column in self.columns[len(self.key_schema) + 2 :]:
            values[column.name] = self.random.choice([None, 1, 2])
        return values

    def _key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key_schema.names)

    def _schema(self) -> pa.Schema:
        return pa.schema(self.columns)

    def _copied_model(self) -> dict[Key, Row]:
        return {key: dict(row) for key, row in self.model.items()}


def run_tables(folder: Path, seeds: Iterable[int], steps: int) -> Counter[str]:
    """Do random steps on some tables, one table after the other, in a process of its own.

    Args:
        folder: which does not exist yet.
        seeds: of the tables.

    Returns:
        how often each step was done.
    """
    have_limits_soon()
    folder.mkdir()
    done: Counter[str] = Counter()
    with delta_spark(folder) as spark:
        for seed in seeds:
            (folder / str(seed)).mkdir()
            kind = list(KEYS)[seed % len(KEYS)]
            table = DeltaFuzz(folder / str(seed), seed, kind, spark=spark)
            try:
                table.run(steps)
                table.check_by_all()
            except Exception as error:
                error.add_note(f"the table's seed {seed}, key {kind}")
                raise
            done += table.done
            shutil.rmtree(folder / str(seed))
    return done


def run_in_store(
    folder: Path, seed: int, steps: int, options: dict[str, str]
) -> tuple[Counter[str], Counter[str]]:
    """Do random steps on a table in S3, in a process of its own; ours are through a proxy that
    loses answers.

    Args:
        folder: which does not exist yet.
        options: of the store.

    Returns:
        how often each step was done, and how often each fault came.
    """
    have_limits_soon()
    folder.mkdir()
    kind = list(KEYS)[seed % len(KEYS)]
    dice = random.Random(seed)
    endpoint = options["aws_endpoint_url"]

    def choose(_: Request) -> Fault | None:
        return dice.choice(_FAULTS) if dice.random() < _FAULTY else None

    with store_proxy(endpoint) as proxy:
        proxy.choose = choose
        through = {**options, "aws_endpoint_url": proxy.endpoint}
        place = StoredPlace(f"s3://lake/{seed}-{uuid.uuid4()}", through, options)
        table = DeltaFuzz(folder, seed, kind, place=place)
        try:
            table.run(steps)
            table.check_by_all()
        except Exception as error:
            error.add_note(f"the table's seed {seed}, key {kind}")
            raise
        return table.done, Counter(fault.value for _, fault in proxy.faults)


def have_limits_soon() -> None:
    """Let upkeep begin, sidecars be large, and row groups be kept, with tables as small as
    these."""
    row_cache.SMALLEST_BYTES, row_cache.FEW_ROWS = 0, 1
    upkeep.MANY_COMMITS = 10
    lake_upkeep.FILES_OF_A_SIZE = 4
    sidecars.ROWS_IN_A_RUN = 8
    mapped_files.RESIDENT_BYTES = 2048


def _rows(table: DeltaTable) -> list[Row]:
    """As deltalake's engine reads them, which knows vectors."""
    return pa.RecordBatchReader.from_stream(table.scan()).read_all().to_pylist()


def _literal(value: int | str | None) -> str:
    """A value in Spark's SQL."""
    if value is None:
        return "NULL"
    return f"unhex('{value.encode().hex()}')" if isinstance(value, str) else str(value)


def comparable(row: Row) -> str:
    """A row as a text that sorts."""
    return repr(sorted(row.items()))
