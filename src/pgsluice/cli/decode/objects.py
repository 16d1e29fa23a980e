"""Prints messages as JSON, one object on each line.

An object has all data of the message. Simple fields have the names of :mod:`pgsluice.wire`. Before
them come

======== ==========================================================================
tag      the message's first byte
message  its name
lsn      its LSN; null if the input has none, or the server sends none (R and Y)
xid      of the **top-level** transaction; null outside transactions
subxid   only between S and E: the (sub)transaction id in the message itself
======== ==========================================================================

LSNs are text as PostgreSQL prints them, timestamps ISO 8601 in UTC. A row is an object of its
columns. A value is a string as received, null for NULL, or an object: ``{"unchanged": true}``,
``{"base64": "…"}`` for a value in binary form, ``{"text_base64": "…"}`` for text that is not
UTF-8. If the relation was not announced, columns are named by number, ``$1`` first.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pgsluice import wire
from pgsluice.cli.decode.follow import Facts, Follower, Seen
from pgsluice.lsn import Lsn
from pgsluice.shown import shown_json

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_IN_STREAM = (
    wire.Relation,
    wire.Type,
    wire.Insert,
    wire.Update,
    wire.Delete,
    wire.Truncate,
    wire.LogicalMessage,
    Facts,
)


def print_object(follower: Follower, seen: Seen) -> None:
    """Print a pgoutput message as one line of JSON."""
    value = to_object(seen, follower)
    try:
        sys.stdout.write(shown_json(value) + "\n")
    except UnicodeEncodeError:  # a terminal without UTF-8
        sys.stdout.write(json.dumps(value) + "\n")


def to_object(seen: Seen, follower: Follower) -> dict[str, Any]:
    """A pgoutput message as an object of JSON, as this module's docstring describes it."""
    message = seen.message
    result: dict[str, Any] = {
        "tag": message.tag,
        "message": type(message).__name__,
        "lsn": None if seen.lsn is None else str(seen.lsn),
        "xid": seen.xid,
    }
    if isinstance(message, _IN_STREAM) and message.xid is not None:
        result["subxid"] = message.xid
    if seen.raw.taken_back:
        result["taken_back"] = True
    match message:
        case Facts():
            content = json.loads(message.content) if message.content else None
            names = _names(follower.relation(message.oid))
            return result | {"oid": message.oid, **names, "facts": content}
        case wire.Relation():
            return result | _relation(message)
        case wire.Type(oid, namespace, name):
            return result | {"oid": oid, "schema": namespace or "pg_catalog", "name": name}
        case wire.Insert() | wire.Update() | wire.Delete():
            return result | _change(message, follower)
        case wire.Truncate():
            tables = [{"oid": oid, **_names(follower.relation(oid))} for oid in message.oids]
            flags = {"cascade": message.is_cascade, "restart_identity": message.is_restart_identity}
            return result | {"tables": tables} | flags
        case wire.LogicalMessage():
            return result | _logical_message(message)
        case wire.StreamAbort(_, subxid, aborted):
            result["subxid"] = subxid
            if aborted is not None:
                result["abort_lsn"] = str(aborted.lsn)
                result["abort_timestamp"] = timestamp(aborted.timestamp)
            return result
    return result | _plain(message)


def _plain(message: wire.Message) -> dict[str, Any]:
    """Fields that are numbers, LSNs, timestamps or names."""
    result: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name == "xid":
            continue  # in all of these the top-level transaction, which is there already
        if isinstance(value, Lsn):
            value = str(value)
        elif field.name.endswith("timestamp"):
            value = timestamp(value)
        result[field.name] = value
    return result


def _relation(message: wire.Relation) -> dict[str, Any]:
    return {
        "oid": message.oid,
        "schema": message.schema,
        "name": message.name,
        "replica_identity": message.replica_identity.value,
        "columns": [
            {
                "name": column.name,
                "is_key": column.is_key,
                "type_oid": column.type_oid,
                "typmod": column.typmod,
            }
            for column in message.columns
        ],
    }


def _names(relation: wire.Relation | None) -> dict[str, Any]:
    if relation is None:
        return {}
    return {"schema": relation.schema, "table": relation.name}


def _change(message: wire.Insert | wire.Update | wire.Delete, follower: Follower) -> dict[str, Any]:
    relation = follower.relation(message.oid)
    result: dict[str, Any] = {"oid": message.oid, **_names(relation)}
    if not isinstance(message, wire.Insert):
        match message.old:
            case wire.OldKey(data):
                result["key"] = _row(data, relation, is_key=True)
            case wire.OldRow(data):
                result["old"] = _row(data, relation)
    if not isinstance(message, wire.Delete):
        result["new"] = _row(message.new, relation)
    return result


def _logical_message(message: wire.LogicalMessage) -> dict[str, Any]:
    content: Any
    try:
        content = message.content.decode()
    except UnicodeDecodeError:
        content = {"base64": _base64(message.content)}
    return {
        "transactional": message.is_transactional,
        "message_lsn": str(message.lsn),
        "prefix": message.prefix,
        "content": content,
    }


def sent_columns(
    data: wire.TupleData, relation: wire.Relation | None, *, is_key: bool
) -> Iterator[tuple[str, int]]:
    """The names and indexes of a row's columns; in a key, the other columns are sent as NULL.

    Names are numbers, ``$1`` first, if the relation is unknown or does not fit the row.
    """
    known = relation.columns if relation is not None else ()
    fits = len(known) == len(data)
    for index in range(len(data)):
        if not is_key or not data.is_null(index) or (fits and known[index].is_key):
            yield (known[index].name if fits else f"${index + 1}"), index


def _row(
    data: wire.TupleData, relation: wire.Relation | None, *, is_key: bool = False
) -> dict[str, Any]:
    return {
        name: _value(data, column) for name, column in sent_columns(data, relation, is_key=is_key)
    }


def _value(data: wire.TupleData, column: int) -> Any:
    value = data.values[column]
    if value is None:
        return {"unchanged": True} if data.is_unchanged(column) else None
    if data.is_binary(column):
        return {"base64": _base64(value)}
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"text_base64": _base64(value)}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def timestamp(microseconds: int) -> str | int:
    """Microseconds since 2000-01-01 UTC in ISO 8601; the number outside years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return microseconds
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
