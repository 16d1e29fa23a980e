"""The lines of a subscription's record file: the changes from one record to the next.

The first line has a whole record; each later line has the changes of one save. A line is JSON
with its checksum (:mod:`pgsluice.spool.formats`), and has only the keys that changed:

* ``name``, ``owner``, ``mode``, ``sink``, ``query``, ``registered``, ``position``,
  ``looked_through``;
* ``tables`` and ``unpublished``: each changed table by relation OID, without fields that have their
  default value, also inside of its parts; null: the table was removed. A table without
  ``applied_through`` is *level* (up to date): its ``applied_through`` is the record's position,
  also after later lines. So a batch that changes one table of many writes only that table, although
  all tables advance to its end;
* ``former``: all previous targets, by schema and name;
* ``cut``: the newest consistent checkpoint, with the ``versions`` that differ from the one before
  it; null: the table is no longer part of it;
* ``cuts``: how many of the oldest checkpoints were ``dropped``, and the ``added`` ones, the newest
  first, each as its difference to the next newer one; the newest as its difference to ``cut``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from pgsluice.lsn import Lsn
from pgsluice.spool.records.record import (
    AddedColumns,
    Claim,
    Copied,
    Cut,
    FormerTarget,
    OldTarget,
    Owner,
    Partitions,
    Pending,
    SourceView,
    SubscriptionRecord,
    TableRecord,
    TableState,
    TargetName,
    UnseenLeaf,
)

RECORD_FORMAT = 5
"""The format that is written.

4: the first line has the spool's id. 5: fingerprints have the attribute numbers of dropped columns,
and a table's fields are grouped in parts.
"""

NOT_A_RECORD = (ValueError, KeyError, TypeError, AttributeError)
"""What a builder raises if the lines are not those of a record."""
T = TypeVar("T")
_all_but_position = attrgetter(
    *(field.name for field in fields(TableRecord) if field.name != "applied_through")
)
_OTHER_FIELDS = ("name", "mode", "sink")


def encode_change(before: SubscriptionRecord | None, after: SubscriptionRecord) -> dict[str, Any]:
    """The difference that a save writes; empty if nothing changed. ``before``: the last saved
    record; None: write the whole record."""
    raw: dict[str, Any] = {
        name: value
        for name, value in _simple_fields(after).items()
        if before is None or _simple_fields(before).get(name) != value
    }
    tables = _changed_tables(before, after)
    if tables:
        raw["tables"] = tables
    known = {} if before is None else before.unpublished
    unpublished = _difference(known, after.unpublished, lambda table: _encode_table(table, None))
    if unpublished:
        raw["unpublished"] = unpublished
    if after.former != ({} if before is None else before.former):
        raw["former"] = _encode_former(after.former)
    old_cut, old_cuts = (None, ()) if before is None else (before.cut, before.cuts)
    if after.cut != old_cut:
        raw["cut"] = None if after.cut is None else _encode_cut(after.cut, old_cut)
    if after.cuts != old_cuts:
        raw["cuts"] = _encode_cuts(after, old_cuts)
    return raw


class RecordBuilder:
    """Builds a record from the lines of its file, which all have one format."""

    def __init__(self, written_format: int = RECORD_FORMAT) -> None:
        self.written_format = written_format
        is_current = written_format == RECORD_FORMAT
        self._decode_table = _decode_table if is_current else _decode_flat_table
        self._fields: dict[str, Any] = {}
        self._tables: dict[int, TableRecord] = {}
        self._level: set[int] = set()
        self._unpublished: dict[int, TableRecord] = {}
        self._former: Mapping[TargetName, FormerTarget] = {}
        self._cut: Cut | None = None
        self._cuts: tuple[Cut, ...] = ()

    def apply(self, raw: dict[str, Any]) -> None:
        """Apply the change of one line of a record's file; raises NOT_A_RECORD if it is none."""
        tables = raw.pop("tables", {})
        _apply_difference(self._tables, tables, self._decode_table)
        self._level.difference_update(map(int, tables))
        self._level.update(
            int(oid)
            for oid, table in tables.items()
            if table is not None and "applied_through" not in table
        )
        _apply_difference(self._unpublished, raw.pop("unpublished", {}), self._decode_table)
        if "former" in raw:
            self._former = _decode_former(raw.pop("former"))
        if "cut" in raw:
            cut = raw.pop("cut")
            self._cut = None if cut is None else _decode_cut(cut, self._cut)
        cuts = raw.pop("cuts", None)
        if cuts is not None:
            added: list[Cut] = []
            for cut in cuts["added"]:
                added.append(_decode_cut(cut, added[-1] if added else self._cut))
            self._cuts = (*self._cuts[cuts["dropped"] :], *reversed(added))
        self._fields.update(raw)

    def build(self) -> SubscriptionRecord:
        """The record as of the last line; raises NOT_A_RECORD if it is not complete."""
        raw = dict(self._fields)
        position = Lsn.parse(raw.pop("position"))
        for oid in self._level:
            table = self._tables[oid]
            if table.applied_through != position:
                self._tables[oid] = table.at(position)
        return SubscriptionRecord(
            **{name: raw.pop(name) for name in _OTHER_FIELDS},
            owner=Owner(raw.pop("owner")),
            registered=Lsn.parse(raw.pop("registered")),
            position=position,
            looked_through=Lsn.parse(raw.pop("looked_through")),
            query=raw.pop("query", {}),
            tables=dict(self._tables),
            unpublished=dict(self._unpublished),
            cut=self._cut,
            cuts=self._cuts,
            former=self._former,
            extra=raw,
        )


def _simple_fields(record: SubscriptionRecord) -> dict[str, Any]:
    return {
        **record.extra,
        **{name: getattr(record, name) for name in _OTHER_FIELDS},
        "owner": record.owner.value,
        "registered": str(record.registered),
        "position": str(record.position),
        "looked_through": str(record.looked_through),
        **({"query": dict(record.query)} if record.query else {}),
    }


def _changed_tables(
    before: SubscriptionRecord | None, after: SubscriptionRecord
) -> dict[str, dict[str, Any] | None]:
    """The tables that do not follow from earlier lines and the new position, by OID; null:
    removed."""
    known = {} if before is None else before.tables
    raw: dict[str, dict[str, Any] | None] = {str(oid): None for oid in known.keys() - after.tables}
    for oid, table in after.tables.items():
        old = known.get(oid)
        if before is not None and old is not None:
            was_level = old.applied_through == before.position
            is_level = table.applied_through == after.position
            if (
                was_level == is_level
                and (is_level or table.applied_through == old.applied_through)
                and (table is old or _all_but_position(table) == _all_but_position(old))
            ):
                continue
        raw[str(oid)] = _encode_table(table, after.position)
    return raw


def _encode_table(table: TableRecord, position: Lsn | None) -> dict[str, Any]:
    raw = _encode_fields(table)
    raw.pop("applied_through", None)
    if table.applied_through != position:
        raw["applied_through"] = str(table.applied_through)
    return raw


def _encode_fields(part: Any) -> dict[str, Any]:
    """The fields of a table, or of a part of it, that do not have their default value."""
    return {
        field.name: _encode(value)
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default
    }


def _encode(value: Any) -> Any:
    match value:
        case Lsn():
            return str(value)
        case OldTarget():
            return {"old_target": value}
        case Partitions():
            return {"partitions": value}
        case AddedColumns():
            return [str(value.after), value.facts]
    return _encode_fields(value) if is_dataclass(value) else value


def _decode_fields(part: type[T], raw: Mapping[str, Any]) -> T:
    """Decode a table or a part of it; fields of newer versions are ignored."""
    known = raw.keys() & {field.name for field in fields(part)}  # type: ignore[arg-type]
    return part(**{n: _DECODERS[n](raw[n]) if n in _DECODERS else raw[n] for n in known})


_decode_table = partial(_decode_fields, TableRecord)


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("applied_through", "committed", "lsn", "position"), Lsn.parse),
    **dict.fromkeys(("relations", "predecessor_oids", "incomplete"), tuple),
    "state": TableState,
    "source": partial(_decode_fields, SourceView),
    "copied": partial(_decode_fields, Copied),
    "claim": partial(_decode_fields, Claim),
    "pending": partial(_decode_fields, Pending),
    "copying": lambda raw: (
        OldTarget(*raw["old_target"])
        if "old_target" in raw
        else Partitions(*map(tuple, raw["partitions"]))
    ),
    "columns": lambda raw: AddedColumns(Lsn.parse(raw[0]), raw[1]),
    "unseen_leaves": lambda raw: tuple(
        UnseenLeaf(oid, parent, condition, tuple(columns))
        for oid, parent, condition, columns in raw
    ),
}
"""Decoders of the fields that have another form in JSON."""


def _decode_flat_table(flat: Mapping[str, Any]) -> TableRecord:
    """Decode a table of format 4, which has no parts, and may have data of other states."""
    raw = dict(flat)

    def part(**names: str) -> dict[str, Any]:
        return {name: raw.pop(old) for name, old in names.items() if old in raw}

    due = part(due="next_due") if raw.pop("deferred", False) else {}
    partitions = part(load="load_leaves", gone="gone_leaves", gone_bounds="gone_bounds")
    if "old_target" in raw:
        raw["copying"] = {"old_target": raw.pop("old_target")}
    elif partitions:
        raw["copying"] = {"partitions": Partitions(**partitions)}
    raw["pending"] = {**due, **part(verification="to_verify")}
    if "alter_after" in raw:
        raw["pending"]["columns"] = raw["alter_after"], raw["alter_facts"]
    raw["claim"] = part(
        predecessor_oids="predecessor_oids", any_source="may_replace_foreign_target"
    )
    raw["copied"] = part(
        position="copied_at", timeline="copied_on", cause="copied_for", reason="copy_reason"
    )
    raw["source"] = part(
        fingerprint="fingerprint", relations="relations", lsn="looked_at", timeline="looked_on"
    )
    table = _decode_table(raw)
    return table.in_state(table.state)


def _encode_former(former: Mapping[TargetName, FormerTarget]) -> dict[str, dict[str, Any]]:
    raw: dict[str, dict[str, Any]] = {}
    for (namespace, name), left in former.items():
        raw.setdefault(namespace, {})[name] = asdict(left)
    return raw


def _decode_former(raw: Mapping[str, Mapping[str, Any]]) -> dict[TargetName, FormerTarget]:
    return {
        (namespace, name): FormerTarget(**{**left, "oids": tuple(left["oids"])})
        for namespace, names in raw.items()
        for name, left in names.items()
    }


def _difference(
    before: Mapping[int, T], after: Mapping[int, T], encode: Callable[[T], Any]
) -> dict[str, Any]:
    """The values that differ, by OID; null: the value was removed."""
    removed = {str(oid): None for oid in before.keys() - after.keys()}
    changed = {str(oid): encode(value) for oid, value in after.items() if before.get(oid) != value}
    return removed | changed


def _apply_difference(
    values: dict[int, T], raw: Mapping[str, Any], decode: Callable[[Any], T]
) -> None:
    for oid, value in raw.items():
        if value is None:
            del values[int(oid)]
        else:
            values[int(oid)] = decode(value)


def _encode_cut(cut: Cut, base: Cut | None) -> dict[str, Any]:
    versions = _difference({} if base is None else base.versions, cut.versions, int)
    return {"lsn": str(cut.lsn), "made_at": cut.made_at, "versions": versions}


def _decode_cut(raw: Mapping[str, Any], base: Cut | None) -> Cut:
    versions = {} if base is None else dict(base.versions)
    _apply_difference(versions, raw["versions"], int)
    return Cut(lsn=Lsn.parse(raw["lsn"]), made_at=raw["made_at"], versions=versions)


def _encode_cuts(after: SubscriptionRecord, old: tuple[Cut, ...]) -> dict[str, Any]:
    """How many checkpoints were dropped at the front, and those that were added at the end."""
    dropped = next((n for n in range(len(old)) if after.cuts[: len(old) - n] == old[n:]), len(old))
    added = []
    base = after.cut
    for cut in reversed(after.cuts[len(old) - dropped :]):
        added.append(_encode_cut(cut, base))
        base = cut
    return {"dropped": dropped, "added": added}
