"""PostgreSQL 18's own publications beside pgsluice's, for the same WAL, change by change.

A scene is a database with tables, publications of its own and one slot. Its changes are read from
the slot once for each set of publications, and once for a publication of everything, on which
pgsluice's publications of the same statements act. Both come out as :class:`Sent`.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any

import psycopg
from psycopg import sql
from tests.support.segments import facts_message, segment

from pgsluice import wire
from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.columnar.changes import Tuples
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.errors import EvaluationError, TableError
from pgsluice.publication import (
    Publication,
    Publications,
    Publisher,
    load_publications,
    publish_all,
    resolve,
)
from pgsluice.sql import SqlRefused

UNCHANGED = "(unchanged)"
Row = dict[str, str | None]


@dataclass(frozen=True)
class Sent:
    """One change as a subscriber gets it.

    Attributes:
        action: ``I``, ``U``, ``D`` or ``T``.
        old_kind: ``K``, ``O`` or empty.
        old, new: values in text form by column, in order; None without the tuple.
    """

    relation: str
    action: str
    old_kind: str = ""
    old: tuple[tuple[str, str | None], ...] | None = None
    new: tuple[tuple[str, str | None], ...] | None = None


# The server's side


def decoded_by_server(messages: Iterable[bytes]) -> list[Sent]:
    """What the server sends."""
    relations: dict[int, wire.Relation] = {}
    sent: list[Sent] = []
    for raw in messages:
        message = wire.decode_message(raw)
        match message:
            case wire.Relation():
                relations[message.oid] = message
            case wire.Insert() | wire.Update() | wire.Delete():
                relation = relations[message.oid]
                old = None if isinstance(message, wire.Insert) else message.old
                new = None if isinstance(message, wire.Delete) else message.new
                kind = "" if old is None else "K" if isinstance(old, wire.OldKey) else "O"
                sent.append(
                    Sent(
                        _name(relation),
                        type(message).tag,
                        kind,
                        None if old is None else _values(relation, old.data),
                        None if new is None else _values(relation, new),
                    )
                )
            case wire.Truncate():
                names = sorted(_name(relations[oid]) for oid in message.oids)
                sent += [Sent(name, "T") for name in names]
    return sent


def _name(relation: wire.Relation) -> str:
    return f"{relation.namespace}.{relation.name}"


def _values(relation: wire.Relation, data: wire.TupleData) -> tuple[tuple[str, str | None], ...]:
    return tuple(
        (column.name, UNCHANGED if data.is_unchanged(place) else _text(data.values[place]))
        for place, column in enumerate(relation.columns)
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


# Our side


def encoded(runs: Sequence[RelationChanges]) -> list[Sent]:
    """Changes as messages, in their order; decoded with the text of every column."""
    numbered: list[tuple[int, str, Sent]] = []
    for run in runs:
        news, olds = _rows(run, run.new), _rows(run, run.old)
        name = _name(run.relation)
        for place in range(len(run)):
            new, old = int(run.new_index[place]), int(run.old_index[place])
            one = Sent(
                name,
                chr(run.actions[place]),
                chr(run.old_kinds[place]) if run.old_kinds[place] else "",
                _hidden(olds[old], chr(run.old_kinds[place])) if old >= 0 else None,
                news[new] if new >= 0 else None,
            )
            numbered.append((int(run.ordinals[place]), name, one))
    return [one for _, _, one in sorted(numbered, key=lambda entry: entry[:2])]


def _rows(run: RelationChanges, tuples: Tuples) -> list[tuple[tuple[str, str | None], ...]]:
    columns = []
    for place, name in enumerate(run.schema.names):
        values: list[str | None] = tuples.texts[place]().to_pylist()
        absent = tuples.absent.get(place)
        if absent is not None:
            pairs = zip(values, absent, strict=True)
            values = [UNCHANGED if gone else one for one, gone in pairs]
        columns.append([(name, value) for value in values])
    return list(zip(*columns, strict=True))


def _with_known_texts(run: RelationChanges) -> RelationChanges:
    """The same changes, of which each text is decoded once: hundreds of publications are compared
    on them."""

    def known(tuples: Tuples) -> Tuples:
        return replace(tuples, texts={n: cache(text) for n, text in tuples.texts.items()})

    return replace(run, new=known(run.new), old=known(run.old))


def _hidden(
    row: tuple[tuple[str, str | None], ...], kind: str
) -> tuple[tuple[str, str | None], ...]:
    """On the wire, a key's tuple has NULL for the columns that it does not carry."""
    if kind == "O":
        return row
    return tuple((name, None if value == UNCHANGED else value) for name, value in row)


# Both


class Verdict(Enum):
    """The outcome of a comparison."""

    SAME = "the same changes"
    SAME_ERROR = "the same error, and the same changes before it"
    REFUSED = "ours refuses, and says so"
    CANNOT_KNOW = "a value of which only the server knows"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Outcome:
    """A comparison.

    Attributes:
        cases: changes of the published tables.
        seen: what was done to them, how often.
        detail: of a difference.
    """

    verdict: Verdict
    cases: int
    detail: str = ""
    seen: Counter[str] = field(default_factory=Counter)


@dataclass
class Scene:
    """A database whose changes are in its slot; ``turned`` counts what became of UPDATEs.

    Args:
        connection: to it, with the settings of a stream.
        publications: the statements that made the server's, those that it took.
    """

    connection: psycopg.Connection[Any]
    publications: Sequence[str]
    catalog: SourceCatalog = field(init=False)
    ours: dict[str, Publication] = field(init=False, default_factory=dict)
    refused: dict[str, str] = field(init=False, default_factory=dict)
    turned: Counter[str] = field(init=False, default_factory=Counter)
    _runs: dict[str, list[RelationChanges]] = field(init=False, default_factory=dict)
    _begins: dict[str, list[tuple[int, str]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.catalog = source_catalog(self.connection)
        for statement in self.publications:
            try:
                loaded: Publications = load_publications(statement, self.catalog)
            except SqlRefused as error:
                self.refused[_publication_name(statement)] = str(error)
                continue
            self.ours.update((one.name, one) for one in loaded)

    def peek(self, names: Sequence[str], up_to: str | None = None) -> list[tuple[str, bytes]]:
        """What the server sends to a subscription: (LSN, message)."""
        query = (
            "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes("
            "'s', %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s)"
        )
        listed = ",".join(f'"{name}"' for name in names)
        rows = self.connection.execute(query, [up_to, listed]).fetchall()
        return [(lsn, bytes(data)) for lsn, data in rows]

    def everything(self, publication: str) -> list[RelationChanges]:
        """The decoded changes of a publication without any filter, with all texts."""
        if publication not in self._runs:
            messages = self.peek([publication])
            decoded = [wire.decode_message(raw) for _, raw in messages]
            relations = [one for one in decoded if isinstance(one, wire.Relation)]
            facts = [
                facts_message(oid, fetch_relation_facts(self.connection, oid))
                for oid in dict.fromkeys(one.oid for one in relations)
            ]
            names = {column.name for one in relations for column in one.columns}
            view = segment([*facts, *(raw for _, raw in messages)])
            decoded_runs = decode_segment(view, texts=names)
            self._runs[publication] = [_with_known_texts(run) for run in decoded_runs]
            self._begins[publication] = [
                (number, lsn)
                for number, (lsn, raw) in enumerate(messages, start=len(facts))
                if raw[:1] == b"B"
            ]
        return self._runs[publication]

    def compare(self, names: Sequence[str], everything: str = "everything") -> Outcome:
        """A subscription to some publications: the server's changes beside ours."""
        runs = self._of_tables(self.everything(everything), names)
        cases = sum(len(run) for run in runs)
        if any(name in self.refused for name in names):
            return Outcome(Verdict.REFUSED, cases)
        failure = ""
        try:
            theirs = decoded_by_server(raw for _, raw in self.peek(names))
        except psycopg.Error as error:
            theirs, failure = [], str(error.diag.message_primary)
        ours = self._published(runs, names)
        if isinstance(ours, Exception):
            return self._failed(names, runs, ours, failure, everything)
        if failure:
            return Outcome(Verdict.DIFFERENT, cases, f"{names}: the server fails: {failure}")
        return self._compared(names, theirs, ours, cases)

    def _of_tables(
        self, runs: Sequence[RelationChanges], names: Sequence[str]
    ) -> list[RelationChanges]:
        """The changes of the tables that some publications have."""
        given = [self.ours[name] for name in names if name in self.ours]
        try:
            tables = [
                oid
                for oid in {run.relation.oid for run in runs}
                if resolve(given, self.catalog.tables[oid], self.catalog) is not None
            ]
        except (SqlRefused, TableError):
            return list(runs)
        return [run for run in runs if run.relation.oid in tables]

    def _compared(
        self, names: Sequence[str], theirs: list[Sent], ours: list[Sent], cases: int
    ) -> Outcome:
        if ours == theirs:
            return Outcome(Verdict.SAME, cases, seen=Counter(_what(one) for one in ours))
        first = next(
            (pair for pair in zip(theirs, ours, strict=False) if pair[0] != pair[1]),
            (theirs[len(ours) :][:1], ours[len(theirs) :][:1]),
        )
        detail = f"{self._statements(names)}\n  server: {first[0]}\n  ours:   {first[1]}"
        return Outcome(Verdict.DIFFERENT, cases, detail)

    def _statements(self, names: Sequence[str]) -> str:
        return "\n".join(one for one in self.publications if _publication_name(one) in names)

    def _published(
        self, runs: Sequence[RelationChanges], names: Sequence[str]
    ) -> list[Sent] | Exception:
        """Our changes; or the error of the first change that has one."""
        publications = [self.ours[name] for name in names]
        publishers: dict[int, Publisher] = {}
        errors: list[tuple[int, Exception]] = []
        for run in runs:
            oid = run.relation.oid
            try:
                one = Publisher.of(publications, self.catalog.tables[oid], self.catalog)
            except (SqlRefused, TableError) as error:
                errors.append((int(run.ordinals[0]), error))
                continue
            if one is not None:
                publishers[oid] = pickle.loads(pickle.dumps(one))  # as it arrives in a task
        try:
            published = publish_all(publishers, runs)
        except TableError as error:
            errors.append((error.facts.get("ordinal", 0), error))
        if errors:
            return min(errors, key=lambda one: one[0])[1]
        self.turned.update(_turned(runs, published))
        return encoded(published)

    def _failed(
        self,
        names: Sequence[str],
        runs: Sequence[RelationChanges],
        error: Exception,
        failure: str,
        everything: str,
    ) -> Outcome:
        """Ours failed: the server has to fail with the same message at the same change."""
        cases = sum(len(run) for run in runs)
        if isinstance(error, EvaluationError) and error.condition != "cannot_know":
            if _plain(error.message) != _plain(failure):
                detail = f"{names}: the server: {failure or 'no error'}; ours: {error}"
                return Outcome(Verdict.DIFFERENT, cases, detail)
            begin, lsn = max(one for one in self._begins[everything] if one[0] < error.ordinal)
            return self._compared_before(names, runs, begin, lsn)
        if isinstance(error, SqlRefused) and failure:
            is_same = failure.split(" for table ")[0] == error.message.split(" for table ")[0]
            verdict = Verdict.SAME_ERROR if is_same else Verdict.DIFFERENT
            return Outcome(verdict, cases, f"{names}: {failure!r}, {error}")
        is_unknown = isinstance(error, EvaluationError)
        verdict = Verdict.CANNOT_KNOW if is_unknown else Verdict.REFUSED
        return Outcome(verdict, cases, str(error))

    def _compared_before(
        self, names: Sequence[str], runs: Sequence[RelationChanges], ordinal: int, lsn: str
    ) -> Outcome:
        """The transactions before the one with an error."""
        earlier = [run.select(run.ordinals < ordinal) for run in runs]
        ours = self._published([run for run in earlier if len(run)], names)
        if isinstance(ours, Exception):
            return Outcome(Verdict.DIFFERENT, 0, f"{names}: an error before the first: {ours}")
        try:
            theirs = decoded_by_server(raw for _, raw in self.peek(names, lsn))
        except psycopg.Error as error:
            detail = f"{self._statements(names)}\n  the server fails before {lsn}: {error}"
            return Outcome(Verdict.DIFFERENT, 0, detail)
        outcome = self._compared(names, theirs, ours, sum(len(run) for run in earlier))
        same = outcome.verdict is Verdict.SAME
        return Outcome(Verdict.SAME_ERROR, outcome.cases) if same else outcome


def _turned(runs: Sequence[RelationChanges], published: Sequence[RelationChanges]) -> Iterator[str]:
    """What became of each UPDATE: ``UI``, ``UD``, ``UU``."""
    was = {
        int(ordinal): chr(action)
        for run in runs
        for ordinal, action in zip(run.ordinals, run.actions, strict=True)
    }
    for run in published:
        for ordinal, action in zip(run.ordinals, run.actions, strict=True):
            if was[int(ordinal)] == "U":
                yield f"U{chr(action)}"


def _what(sent: Sent) -> str:
    """What kind of message it is."""
    values = dict(sent.new or ()).values()
    return f"{sent.action}{sent.old_kind}{' with unchanged values' if UNCHANGED in values else ''}"


def _publication_name(statement: str) -> str:
    return statement.split()[2].strip('"')


def _plain(message: str) -> str:
    """A message without the values that the server shows."""
    return re.sub(r'"[^"]*" is out', '"…" is out', message)


def try_publications(connection: psycopg.Connection[Any], statements: Iterable[str]) -> list[str]:
    """Make publications; gives those that the server accepts."""
    taken = []
    for statement in statements:
        try:
            connection.execute(sql.SQL(statement))  # type: ignore[arg-type]
        except psycopg.Error:
            continue
        taken.append(statement)
    return taken
