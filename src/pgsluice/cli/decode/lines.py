"""Prints messages as lines: LSN, transaction, tag, name, and fields.

A message of a subtransaction shows both ids, ``top:sub``. Values are bare if they are
unambiguous, else in single quotes with control characters escaped, so that no value reaches
the terminal as a command. Binary values are hexadecimal.
"""

from __future__ import annotations

import re
import sys

from rich.console import Console
from rich.text import Text

from pgsluice import wire
from pgsluice.cli.decode.follow import Facts, Follower, Seen
from pgsluice.cli.decode.objects import sent_columns, timestamp
from pgsluice.shown import shown
from pgsluice.types.registry import resolve_type

_BARE = re.compile(r"[\w.,:+\-/@]+\Z")
_BARE_NAME = re.compile(r"[a-z_][a-z0-9_$]*\Z|\$[0-9]+\Z")
_LONG = 80
_STYLES = {
    **dict.fromkeys("BCcKPp", "bold"),
    **dict.fromkeys("Ar", "bold magenta"),
    **dict.fromkeys("RYO#", "dim"),
    **dict.fromkeys("SEb", "cyan"),
    "I": "green",
    "U": "yellow",
    "D": "red",
    "T": "bold red",
    "M": "blue",
}


class LinePrinter:
    """Prints each message as one line, coloured on a terminal; cuts long values by default.

    Args:
        follower: has the relations and types in force.
    """

    def __init__(self, follower: Follower, *, is_full: bool = False) -> None:
        self._follower = follower
        self._console = Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() else None
        self._limit = None if is_full else _LONG

    def show(self, seen: Seen) -> None:
        """Print a pgoutput message as one line."""
        message = seen.message
        xid = "" if seen.xid is None else str(seen.xid)
        sub = getattr(message, "xid", None)
        if sub is not None and sub != seen.xid:
            xid = f"{xid}:{sub}"
        text, name = self._fields(message), type(message).__name__
        line = f"{seen.lsn or '-'!s:<11} {xid:>7} {message.tag} {name} {text}".rstrip()
        line += "  (taken back)" if seen.raw.taken_back else ""
        if self._console is None:
            sys.stdout.write(line + "\n")
        else:
            style = "strike dim" if seen.raw.taken_back else _STYLES[message.tag]
            self._console.print(Text(line, style))

    def _fields(self, message: wire.Message | Facts) -> str:
        match message:
            case wire.Relation():
                return self._relation(message)
            case wire.Type(oid, _, name):
                schema = quote_name(message.namespace or "pg_catalog")
                return f"{schema}.{quote_name(name)} oid {oid}"
            case wire.Insert() | wire.Update() | wire.Delete():
                return self._change(message)
            case wire.Truncate():
                return self._truncate(message)
            case wire.LogicalMessage():
                alone = "" if message.is_transactional else ", not transactional"
                return f"{quote(message.prefix)}: {self._content(message.content)}{alone}"
            case wire.Origin(origin_lsn, name):
                return f"{quote(name)} at {origin_lsn}"
            case Facts(oid, content):
                return f"{self._name(oid)} {shown(content or 'unknown')}"
            case _:
                return _frame(message)

    def _name(self, oid: int) -> str:
        relation = self._follower.relation(oid)
        return f"relation {oid}" if relation is None else qualified(relation)

    def _relation(self, message: wire.Relation) -> str:
        columns = ", ".join(self._column(column) for column in message.columns)
        identity = message.replica_identity.name.lower()
        return f"{qualified(message)} oid {message.oid} ({columns}) identity {identity}"

    def _column(self, column: wire.RelationColumn) -> str:
        sent = self._follower.type_name(column.type_oid)
        name = resolve_type(column.type_oid, -1, {}).name if sent is None else quote_name(sent.name)
        return f"{quote_name(column.name)} {name}{' key' if column.is_key else ''}"

    def _change(self, message: wire.Insert | wire.Update | wire.Delete) -> str:
        relation = self._follower.relation(message.oid)
        words = [self._name(message.oid)]
        if not isinstance(message, wire.Insert):
            match message.old:
                case wire.OldKey(data):
                    words += ["key", self._row(data, relation, is_key=True)]
                case wire.OldRow(data):
                    words += ["old", self._row(data, relation)]
        if not isinstance(message, wire.Delete):
            words += ["new"] if len(words) > 1 else []
            words.append(self._row(message.new, relation))
        return " ".join(words)

    def _row(
        self, data: wire.TupleData, relation: wire.Relation | None, *, is_key: bool = False
    ) -> str:
        shown = [
            f"{quote_name(name)}={self._value(data, column)}"
            for name, column in sent_columns(data, relation, is_key=is_key)
        ]
        return f"({', '.join(shown)})"

    def _value(self, data: wire.TupleData, column: int) -> str:
        value = data.values[column]
        if value is None:
            return "<unchanged>" if data.is_unchanged(column) else "NULL"
        return self._binary(value) if data.is_binary(column) else self._content(value)

    def _content(self, value: bytes) -> str:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return self._binary(value)
        if self._limit is None or len(text) <= self._limit:
            return quote(text)
        return f"{quote(text[: self._limit] + '…', is_cut=True)} ({len(value)} bytes)"

    def _binary(self, value: bytes) -> str:
        if self._limit is None or 2 * len(value) <= self._limit:
            return f"\\x{value.hex()}"
        return f"\\x{value[: self._limit // 2].hex()}… ({len(value)} bytes)"

    def _truncate(self, message: wire.Truncate) -> str:
        names = ", ".join(self._name(oid) for oid in message.oids)
        cascade = " cascade" if message.is_cascade else ""
        return names + cascade + (" restart identity" if message.is_restart_identity else "")


def _frame(message: object) -> str:
    """Fields of the messages that start and end transactions and streams."""
    match message:
        case wire.Begin(final_lsn, moment):
            return f"commits at {final_lsn}, {timestamp(moment)}"
        case wire.Commit(_, commit_lsn, end_lsn, moment):
            return f"at {commit_lsn} to {end_lsn}, {timestamp(moment)}"
        case wire.StreamStart(_, is_first):
            return "first block" if is_first else "next block"
        case wire.StreamStop():
            return ""
        case wire.StreamCommit(_, _, commit_lsn, end_lsn, moment):
            return f"at {commit_lsn} to {end_lsn}, {timestamp(moment)}"
        case wire.StreamAbort(xid, subxid, aborted):
            scope = "the whole transaction" if xid == subxid else f"subtransaction {subxid}"
            if aborted is None:
                return scope
            return f"{scope} at {aborted.lsn}, {timestamp(aborted.timestamp)}"
        case wire.BeginPrepare(prepare_lsn, _, moment, _, gid):
            return f"{quote(gid)} prepares at {prepare_lsn}, {timestamp(moment)}"
        case wire.Prepare() | wire.StreamPrepare():
            when = timestamp(message.prepare_timestamp)
            return f"{quote(message.gid)} at {message.prepare_lsn} to {message.end_lsn}, {when}"
        case wire.CommitPrepared(_, commit_lsn, end_lsn, moment, _, gid):
            return f"{quote(gid)} at {commit_lsn} to {end_lsn}, {timestamp(moment)}"
        case wire.RollbackPrepared(_, prepared, end_lsn, _, moment, _, gid):
            return f"{quote(gid)} to {end_lsn}, prepared to {prepared}, {timestamp(moment)}"
    raise AssertionError(f"no format for {type(message).__name__}")


def qualified(relation: wire.Relation) -> str:
    """The relation's qualified name, quoted as in SQL."""
    return f"{quote_name(relation.schema)}.{quote_name(relation.name)}"


def quote_name(name: str) -> str:
    """A name quoted as in SQL, with unprintable characters escaped."""
    if _BARE_NAME.match(name):
        return name
    return '"' + shown(name.replace('"', '""')) + '"'


def quote(text: str, *, is_cut: bool = False) -> str:
    """Text in single quotes; without them if that is unambiguous, and the text was not cut."""
    if not is_cut and text != "NULL" and _BARE.match(text):
        return text
    return "'" + shown(text.replace("\\", "\\\\")).replace("'", "''") + "'"
