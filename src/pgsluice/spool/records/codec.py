"""The lines of a subscription's record file: the changes from one record to the next.

The first line has a whole record; each later line has the changes of one save. A line is JSON
with its checksum (:mod:`pgsluice.spool.formats`), and has only the keys that changed:

* ``name``, ``owner``, ``mode``, ``sink``, ``query``, ``registered``, ``position``,
  ``looked_through``;
* ``tables`` and ``unpublished``: each changed table by relation OID, without fields that have
  their default value; null: the table was removed. A table without ``applied_through`` is
  *level*: its ``applied_through`` is the record's position, also after later lines. So a batch
  that changes one table of many writes one table, although all are applied through its end;
* ``former``: all of them, by schema and name;
* ``cut``: its ``versions`` are those that differ from the previous cut; null: the table is not in
  the cut any more;
* ``cuts``: how many of the oldest were ``dropped``, and those ``added``, the newest first, each as
  its difference to the next newer one, and the newest to ``cut``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, TypeVar

from pgsluice.lsn import Lsn
from pgsluice.spool.records.record import (
    Cut,
    FormerTarget,
    OldTarget,
    Owner,
    SubscriptionRecord,
    TableRecord,
    TableState,
    TargetName,
    UnseenLeaf,
)

RECORD_FORMAT = 5
"""The format that is written.

4: the first line says the spool's id.
5: fingerprints have the numbers of dropped columns.
"""

T = TypeVar("T")
_DEFAULTS = {field.name: field.default for field in fields(TableRecord)}
_all_but_position = attrgetter(*(name for name in _DEFAULTS if name != "applied_through"))
_OTHER_FIELDS = ("name", "mode", "sink")


def encode_change(before: SubscriptionRecord | None, after: SubscriptionRecord) -> dict[str, Any]:
    """The difference that a save writes; empty when nothing changed.

    Args:
        before: the record that was saved last; None: write the whole record.
    """
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
    """Builds a record from the lines of its file."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._tables: dict[int, TableRecord] = {}
        self._level: set[int] = set()
        self._unpublished: dict[int, TableRecord] = {}
        self._former: Mapping[TargetName, FormerTarget] = {}
        self._cut: Cut | None = None
        self._cuts: tuple[Cut, ...] = ()

    def apply(self, raw: dict[str, Any]) -> None:
        """Apply one line's change.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not a change of a record.
        """
        tables = raw.pop("tables", {})
        _apply_difference(self._tables, tables, _decode_table)
        self._level.difference_update(map(int, tables))
        self._level.update(
            int(oid)
            for oid, table in tables.items()
            if table is not None and "applied_through" not in table
        )
        _apply_difference(self._unpublished, raw.pop("unpublished", {}), _decode_table)
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
        """The record as of the last line.

        Raises:
            ValueError, KeyError, TypeError: the lines do not make a whole record.
        """
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
            looked_through=Lsn.parse(raw.pop("looked_through", str(Lsn(0)))),
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
    """The tables that a reader could not derive from earlier lines and the new position, by OID;
    null: the table was removed."""
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
    raw: dict[str, Any] = {}
    for name in TableRecord.__slots__:
        value = getattr(table, name)
        if name == "applied_through":
            if value != position:
                raw[name] = str(value)
        elif value != _DEFAULTS[name]:
            raw[name] = str(value) if isinstance(value, Lsn) else value
    return raw


def _decode_table(raw: Mapping[str, Any]) -> TableRecord:
    values = {name: raw[name] for name in raw.keys() & _DEFAULTS.keys()}
    for name, value in values.items():
        default = _DEFAULTS[name]
        if isinstance(default, Lsn):
            values[name] = Lsn.parse(value)
        elif isinstance(default, TableState):
            values[name] = TableState(value)
        elif name == "unseen_leaves":
            values[name] = tuple(
                UnseenLeaf(oid, parent, condition, tuple(columns))
                for oid, parent, condition, columns in value
            )
        elif isinstance(default, tuple):
            values[name] = tuple(value)
        elif name == "old_target":
            values[name] = OldTarget(*value)
    return TableRecord(**values)


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
    """How many cuts were dropped at the front, and those that were added at the end."""
    dropped = next((n for n in range(len(old)) if after.cuts[: len(old) - n] == old[n:]), len(old))
    added = []
    base = after.cut
    for cut in reversed(after.cuts[len(old) - dropped :]):
        added.append(_encode_cut(cut, base))
        base = cut
    return {"dropped": dropped, "added": added}
