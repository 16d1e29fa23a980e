"""Decodes a segment's raw messages to typed changes.

A *run* is a group of changes of one relation with the same definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    KEY_ONLY,
    TRUNCATE,
    UPDATE,
    WHOLE_ROW,
    Bytes,
    Int64s,
    Mask,
    RelationChanges,
)
from pgsluice.columnar.definitions import (
    Definition,
    column_types,
    decode_at,
    definition_after,
    definition_before,
    protocol_error,
)
from pgsluice.columnar.tuples import TupleReader
from pgsluice.spool.segments.block import FACTS_TAG, OF_ONE_RELATION, RELATION, SegmentView
from pgsluice.types import TypeOptions
from pgsluice.wire import Relation, Truncate


def _allowed_markers() -> Mask:
    """Which markers the protocol allows, by a change's tag and the kind of its first tuple."""
    allowed = np.zeros((256, 256), np.bool_)
    allowed[INSERT, _NEW] = allowed[TRUNCATE, 0] = True
    allowed[UPDATE, [KEY_ONLY, WHOLE_ROW, _NEW]] = True
    allowed[DELETE, [KEY_ONLY, WHOLE_ROW]] = True
    return allowed


_NEW = ord("N")
_MARKERS = _allowed_markers()
_OID_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Run:
    """Changes of one relation under one definition: their indices in the block."""

    messages: Int64s
    definition: Definition


def decode_segment(
    view: SegmentView,
    oids: Collection[int] | None = None,
    options: TypeOptions = TypeOptions(),  # noqa: B008 - frozen
    overrides: Mapping[str, TypeOptions] | None = None,
    texts: Collection[str] = (),
    *,
    unfit_texts: bool = False,
    columns: Collection[str] | None = None,
    identify: Callable[[Definition, int], Definition] | None = None,
) -> Iterator[RelationChanges]:
    """Decode the changes of a segment or part to runs, ordered by their first change. The changes
    of one relation come in commit order.

    Args:
        oids: the relations to decode; None for all.
        options: how to map types to Arrow where there is a choice.
        overrides: options for single columns, by name; for calls with one relation only.
        texts: names of columns whose values are also returned as PostgreSQL's text
            (``Tuples.texts``); for calls with one relation.
        unfit_texts: return the text of every column that has unfit values, too.
        columns: names of the columns to decode; all others are null. None: all columns.
        identify: renames the columns of a definition, given the position of the first change with
            this definition; all other arguments use the new names.

    Raises:
        ProtocolError: a message is malformed.
        ConversionError: a value is not of its column's type.
    """
    runs = [run for oid, messages in _by_relation(view, oids) for run in _runs(view, oid, messages)]
    runs.sort(key=lambda run: int(run.messages[0]))
    for run in runs:
        if identify is not None:
            first = int(view.block.positions[run.messages[0]])
            run = _Run(run.messages, identify(run.definition, first))
        yield _decode_run(view, run, options, overrides, texts, columns, unfit_texts=unfit_texts)


def _by_relation(view: SegmentView, oids: Collection[int] | None) -> Iterator[tuple[int, Int64s]]:
    """Each relation's messages (changes, R and ``#``): their indices in the block."""
    block = view.block
    is_wanted = OF_ONE_RELATION[block.tags]
    if oids is not None:
        is_wanted &= np.isin(block.oids, np.fromiter(oids, np.int64))
    messages = np.flatnonzero(is_wanted)
    owners = block.oids[messages]
    truncated = _truncates(view, oids)
    if truncated:
        messages = np.concatenate([messages, np.array([index for index, _ in truncated], np.int64)])
        owners = np.concatenate([owners, np.array([oid for _, oid in truncated], np.int64)])
    if not len(messages):
        return
    if owners.min() != owners.max() or truncated:
        order = np.lexsort((messages, owners))
        messages, owners = messages[order], owners[order]
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    for first, group in zip(firsts, np.split(messages, firsts[1:]), strict=True):
        yield int(owners[first]), group


def _truncates(view: SegmentView, oids: Collection[int] | None) -> list[tuple[int, int]]:
    """A pair (message index, OID) for each relation of each T; repeated OIDs give one pair."""
    truncated: list[tuple[int, int]] = []
    for index in np.flatnonzero(view.block.tags == TRUNCATE).tolist():
        message = decode_at(view, index)
        assert isinstance(message, Truncate)  # its tag is T
        truncated.extend(
            (index, oid) for oid in dict.fromkeys(message.oids) if oids is None or oid in oids
        )
    return truncated


def _runs(view: SegmentView, oid: int, messages: Int64s) -> Iterator[_Run]:
    """Split one relation's messages where its definition changes."""
    tags = view.block.tags[messages]
    is_event = (tags == RELATION) | (tags == FACTS_TAG)
    definitions = [(0, definition_before(view, oid))]
    for event in np.flatnonzero(is_event).tolist():
        after = definition_after(view, definitions[-1][1], int(messages[event]))
        if after != definitions[-1][1]:
            definitions.append((event, after))
    ends = [begin for begin, _ in definitions[1:]] + [len(messages)]
    for (begin, definition), end in zip(definitions, ends, strict=True):
        changes = messages[begin:end][~is_event[begin:end]]
        if not len(changes):
            continue
        if definition.relation is None:
            first = int(changes[0])
            reason = f"a change of relation {oid}, which no Relation message has announced"
            raise protocol_error(view, first, int(view.block.starts[first]), reason)
        yield _Run(changes, definition)


def _decode_run(
    view: SegmentView,
    run: _Run,
    options: TypeOptions,
    overrides: Mapping[str, TypeOptions] | None,
    texts: Collection[str],
    columns: Collection[str] | None,
    *,
    unfit_texts: bool,
) -> RelationChanges:
    block, messages, definition = view.block, run.messages, run.definition
    relation = definition.relation
    assert relation is not None
    types = column_types(relation, definition.facts, options, overrides)
    reader = TupleReader(
        view,
        relation,
        definition.facts,
        types,
        _indexes(relation, texts),
        unfit_texts=unfit_texts,
        wanted=_wanted(definition, columns),
    )
    actions = block.tags[messages]
    markers = _markers(reader, messages, actions)
    count = len(messages)

    after_marker = block.starts[messages] + (block.body_offset + _OID_BYTES + 1)
    has_old = (markers == KEY_ONLY) | (markers == WHOLE_ROW)
    with_old = np.flatnonzero(has_old)
    key_only = markers[with_old] == KEY_ONLY
    old, old_ends = reader.read(
        messages[with_old], after_marker[with_old], key_only if key_only.any() else None
    )
    new_starts = after_marker
    new_starts[with_old] = _check_between(reader, messages[with_old], actions[with_old], old_ends)

    with_new = np.flatnonzero((actions == INSERT) | (actions == UPDATE))
    new, new_ends = reader.read(messages[with_new], new_starts[with_new])
    trailing = new_ends != block.ends[messages[with_new]]
    reader.refuse(messages[with_new], new_ends, trailing, "bytes follow the new tuple")
    changes = RelationChanges(
        relation=relation,
        facts=definition.facts,
        schema=_schema(relation, reader),
        actions=actions,
        positions=block.positions[messages],
        ordinals=block.ordinals[messages],
        commit_timestamps=block.commit_timestamps[messages],
        xids=block.xids[messages],
        new=new,
        new_index=_index(count, with_new),
        old=old,
        old_index=_index(count, with_old),
        old_kinds=markers * has_old,
        doubt=definition.doubt,
        masked=frozenset(
            column.name
            for column, column_type in zip(relation.columns, types, strict=True)
            if column_type.is_masked
        ),
    )
    return changes.without(definition.left_out)


def _wanted(definition: Definition, columns: Collection[str] | None) -> set[int] | None:
    """The indexes of the columns to decode; None: all."""
    relation, left_out = definition.relation, definition.left_out
    assert relation is not None
    if columns is None and not left_out:
        return None
    names = {column.name for column in relation.columns} if columns is None else {*columns}
    return _indexes(relation, names - left_out)


def _indexes(relation: Relation, names: Collection[str]) -> set[int]:
    return {index for index, column in enumerate(relation.columns) if column.name in names}


def _schema(relation: Relation, reader: TupleReader) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column.name, column_type.arrow_type)
            for column, column_type in zip(relation.columns, reader.types, strict=True)
        ]
    )


def _markers(reader: TupleReader, messages: Int64s, actions: Bytes) -> Bytes:
    """The kind of each change's first tuple: K, O or N; 0 for a TRUNCATE."""
    block = reader.view.block
    offsets = block.starts[messages] + (block.body_offset + _OID_BYTES)
    is_truncate = actions == TRUNCATE
    offsets[is_truncate] = block.starts[messages[is_truncate]]  # any valid offset: it is not used
    reader.refuse(messages, offsets, offsets >= block.ends[messages], "the message is truncated")
    markers = block.data[offsets]
    markers[is_truncate] = 0
    allowed = _MARKERS[actions, markers]
    reader.refuse(messages, offsets, ~allowed, "the message's first tuple is of an unknown kind")
    return markers


def _check_between(
    reader: TupleReader, messages: Int64s, actions: Bytes, old_ends: Int64s
) -> Int64s:
    """Where the new tuples after old ones start; a DELETE ends with its old tuple."""
    limits = reader.view.block.ends[messages]
    is_update = actions == UPDATE
    trailing = ~is_update & (old_ends != limits)
    reader.refuse(messages, old_ends, trailing, "bytes follow the old tuple")
    reader.refuse(messages, old_ends, is_update & (old_ends >= limits), "the new tuple is missing")
    markers = reader.view.block.data[np.where(is_update, old_ends, 0)]
    wrong = is_update & (markers != _NEW)
    reader.refuse(messages, old_ends, wrong, "no new tuple follows the old tuple")
    return old_ends + 1


def _index(count: int, rows: Int64s) -> Int64s:
    """Row numbers 0, 1, 2 ... at ``rows``, -1 elsewhere."""
    index = np.full(count, -1, np.int64)
    index[rows] = np.arange(len(rows))
    return index
