"""The sink contract: changes that tasks stage in pieces, and that one commit makes visible."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pgsluice.changes.net import NetChanges, delete_rows
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, StagedChanges
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_tests import (
    KEYLESS,
    TABLE,
    SinkTests,
    at_once,
    changes,
    identity,
    inserted,
    net,
    row,
)


class StagedChangesContract(SinkTests):
    """Staged changes are invisible until the commit, and are committed once."""

    def staged_changes(self, sink: Sink, *tasks: list[NetChanges]) -> list[StagedChanges]:
        """Stage changes as tasks do, each in pieces; their results are pickled."""
        if not self.writer(sink).can_stage_changes():
            pytest.skip("this sink applies a batch of a table in one task")
        staged = [self.writer(sink).stage_changes(pieces) for pieces in tasks]
        restored: list[StagedChanges] = pickle.loads(pickle.dumps(staged))  # noqa: S301 - our own
        return restored

    def test_shares_of_several_tasks_become_one_commit(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2), row(3, 3, "kept"))
        t = changes().update(row(3, 30, ABSENT)).delete({"id": 1})
        version = self.writer(sink).version()
        staged = self.staged_changes(sink, [net(t)], [net(update(2, 20)), net(inserted(4))])
        assert self.sorted_rows(sink) == [row(1), row(2), row(3, 3, "kept")]
        assert self.writer(sink).version() == version, "nobody sees staged changes"
        applied = self.writer(sink).commit_changes(staged, Lsn(110))
        assert self.sorted_rows(sink) == [row(2, 20), row(3, 30, "kept"), row(4)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 2, 1)
        assert applied.version == self.writer(sink).version()
        assert self.writer(sink).position() == 110
        self.applied(sink, update(3, 31, ABSENT), 120)
        assert row(3, 31, "kept") in self.rows(sink), "changes continue from it"

    def test_a_piece_goes_on_from_what_the_pieces_before_it_left(self, sink: Sink) -> None:
        self.loaded(sink, row(1, 1, "one"), row(2, 2, "two"), row(3))
        moved = changes().update(row(7, 7, ABSENT), old={"id": 1})
        again = changes().update(row(8, 8, ABSENT), old={"id": 7}).insert(row(1, 0, "another"))
        emptied = changes().delete({"id": 5}).delete({"id": 3})
        changed = [update(6, 60), again, update(8, 9, ABSENT), emptied]
        pieces = [net(piece) for piece in (inserted(5), moved, inserted(6), *changed)]
        staged = self.staged_changes(sink, pieces)
        self.writer(sink).commit_changes(staged, Lsn(110))
        assert self.sorted_rows(sink) == [
            row(1, 0, "another"), row(2, 2, "two"), row(6, 60), row(8, 9, "one"),
        ]  # fmt: skip

    def test_others_than_the_discarded_changes_are_committed(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        discarded, *staged = self.staged_changes(sink, [net(inserted(3))], [net(update(2, 20))])
        self.writer(sink).discard_changes([discarded])
        self.writer(sink).commit_changes(staged, Lsn(110))
        assert self.sorted_rows(sink) == [row(1), row(2, 20)]

    def test_a_truncate_empties_the_table_in_every_share(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        shares = []
        for id_ in (1, 3):
            t = changes().truncate().insert(row(id_, 10))
            shares.append([net(inserted(id_ + 3)), net(t), net(update(id_, 11))])
        staged = self.staged_changes(sink, *shares)
        self.writer(sink).commit_changes(staged, Lsn(110))
        assert self.sorted_rows(sink) == [row(1, 11), row(3, 11)]

    def test_rows_of_a_table_without_a_key_are_staged_by_several_tasks(self, sink: Sink) -> None:
        def inserts(*ids: int) -> NetChanges:
            t = ChangesBuilder(KEYLESS.schema, ())
            for id_ in ids:
                t.insert(row(id_))
            return net(t, table=KEYLESS)

        def writer() -> TableWriter:
            return TableWriter(sink, KEYLESS, identity(oid=17))

        writer().load([], Lsn(100))
        if not writer().can_stage_changes():
            pytest.skip("this sink applies a batch of a table in one task")
        staged = [
            writer().stage_changes([inserts(1, 1), inserts(2)]),
            writer().stage_changes([inserts(2)]),
        ]
        writer().commit_changes(staged, Lsn(110))
        assert sorted(r["id"] for r in self.rows(sink, KEYLESS)) == [1, 1, 2, 2]

    def test_changes_that_leave_nothing_move_the_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        emptied = net(changes().delete({"id": 2}))
        staged = self.staged_changes(sink, [net(inserted(2)), emptied], [])
        self.writer(sink).commit_changes(staged, Lsn(110))
        assert (self.rows(sink), self.writer(sink).position()) == ([row(1)], 110)

    def test_a_share_that_was_staged_twice_is_committed_once(self, sink: Sink) -> None:
        """A task was attempted twice; the attempt that reported back is committed."""
        self.loaded(sink, row(1))
        self.staged_changes(sink, [net(inserted(2))])
        staged = self.staged_changes(sink, [net(inserted(2))])
        first = self.writer(sink).commit_changes(staged, Lsn(110))
        again = self.writer(sink).commit_changes(staged, Lsn(110))
        assert again.skipped
        assert again.version == first.version
        assert self.sorted_rows(sink) == [row(1), row(2)]

    def test_keys_are_those_of_the_rows_before_the_changes_that_are_staged(
        self, sink: Sink
    ) -> None:
        """They are read while a task stages, to find the rows that it deletes."""
        assert self.writer(sink).keys(("id",)) is None, "the table does not exist yet"
        self.loaded(sink, row(1), row(2, 2, "two"), row(3))
        self.applied(sink, changes().delete({"id": 1}).update(row(7, 7, ABSENT), old={"id": 2}))
        writer = self.writer(sink)
        batches = writer.keys(("big", "id"))
        if batches is None:
            pytest.skip("the keys of this sink's tables cannot be read")

        def deleting() -> Iterator[NetChanges]:
            yield net(inserted(4))
            for batch in batches:
                read.extend(batch.to_pylist())
                keys = pa.Table.from_batches([batch.select(["id"])])
                yield delete_rows(keys, TABLE.schema, TABLE.key)

        read: list[dict[str, object]] = []
        staged = writer.stage_changes(deleting())
        writer.commit_changes([staged], Lsn(120))
        assert sorted((each["id"], each["big"]) for each in read) == [(3, "big"), (7, "two")]
        assert self.rows(sink) == [row(4)]

    def test_two_attempts_to_commit_at_once_are_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        staged = self.staged_changes(sink, [net(inserted(2))])
        writers = [self.writer(sink), self.writer(sink)]
        done = at_once(lambda writer: writer.commit_changes(staged, Lsn(110)), writers)
        assert sorted(applied.skipped for applied in done) == [False, True]
        assert self.sorted_rows(sink) == [row(1), row(2)]

    def test_changes_that_were_staged_before_another_commit_are_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        staged = self.staged_changes(sink, [net(update(1, 5))])
        self.applied(sink, inserted(2))
        with pytest.raises(PgsluiceError, match="another writer committed while rows were staged"):
            self.writer(sink).commit_changes(staged, Lsn(120))
        assert self.sorted_rows(sink) == [row(1), row(2)]
        assert self.writer(sink).position() == 110


def update(id_: int, a: int, big: object = "big") -> ChangesBuilder:
    """An UPDATE of one row."""
    return changes().update(row(id_, a, big))
