"""The options of ``format("pgoutput")``, checked before anything is opened.

An option has PostgreSQL's name if PostgreSQL has one. Like Spark's options, names are compared
without regard to case. An unknown option is an error that suggests the nearest name: a misspelt
limit that is silently ignored would only be noticed in production.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgsluice.config.path_words import URL, why_no_path
from pgsluice.config.section import home_expanded
from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn

KNOWN = (
    "dsn",
    "slot",
    "publication_names",
    "proto_version",
    "streaming",
    "two_phase",
    "binary",
    "origin",
    "messages",
    "spool",
    "subscription",
    "table",
    "columns",
    "exclude_tables",
    "max_rows_per_batch",
    "max_bytes_per_batch",
    "change_column_prefix",
    "numeric",
    "json",
    "starting_position",
    "starting_lsn",
    "ending_lsn",
    "snapshot",
    "copy_workers",
)
WALSENDER = ("proto_version", "streaming", "two_phase", "binary", "origin", "messages")
"""Options of START_REPLICATION, which the capture process sends to the server."""
EARLIEST, NOW, SNAPSHOT = "earliest", "now", "snapshot"
OF_A_SNAPSHOT = (
    "snapshot",
    "dsn",
    "table",
    "columns",
    "publication_names",
    "copy_workers",
    "change_column_prefix",
    "numeric",
    "json",
)
"""Options of a table's snapshot, for which no spool is needed."""
DEFAULT_SLOT = "pgsluice"
DEFAULT_PUBLICATIONS = ("pgsluice",)
COPY_WORKERS = 8
LATER = ("publications_sql",)
"""Options that are planned for a later version."""

_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|([^\s".]+)')
_LIST_ITEM = re.compile(r'(?:"(?:[^"]|"")*"|[^",]|")+')
_SUBSCRIPTION = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, read by PostgreSQL's rules for identifiers."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``schema.table``; unquoted names are folded to lower case.

        Raises:
            ConfigError: the text is not two identifiers with a dot between them.
        """
        first = _IDENTIFIER.match(text.strip())
        rest = text.strip()[first.end() :] if first else ""
        second = _IDENTIFIER.fullmatch(rest[1:]) if rest.startswith(".") else None
        if first is None or second is None:
            raise ConfigError(
                f"option table: {text!r} is not a table's name",
                hint='write schema.table, e.g. public.orders or "Shop"."Order Lines"',
                option="table",
            )
        return cls(_fold(first), _fold(second))

    @classmethod
    def parse_list(cls, text: str) -> tuple[TableName, ...]:
        """Read names with commas between them.

        Raises:
            ConfigError: as :meth:`parse`.
        """
        return tuple(cls.parse(part) for part in _LIST_ITEM.findall(text) if part.strip())

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def _fold(match: re.Match[str]) -> str:
    quoted = match[1]
    return quoted.replace('""', '"') if quoted is not None else match[2].lower()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query, parsed from Spark's strings.

    Attributes:
        spool: the spool's folder.
        subscription: name of the record that holds the query's position; streaming needs it.
        table: the table to read with its own columns; None: envelope rows of all tables.
        columns: which of the table's columns to read, in the table's order; None: all.
        exclude_tables: tables that envelope rows leave out.
        dsn: the server, for its catalog and for the query's own capture; None: only the spool
            is read.
        slot: the spool's; None: not given.
        publication_names: what the query's own capture asks the server for; None: not given.
        max_rows_per_batch: rows after which a batch takes no further segment.
        max_bytes_per_batch: bytes after which a batch takes no further segment.
        change_column_prefix: what the change columns' names begin with.
        numeric: Spark's type for numeric without precision.
        json: Spark's type for json and jsonb.
        starting_position: where a new subscription of a stream starts: ``earliest`` (the spool's
            start), ``now`` (its last commit), ``snapshot`` (with the table's rows) or an LSN. None:
            at the spool's start if it has no other subscription, else now.
        copy_workers: how many tasks, with a connection each, read a table's rows side by side.
        starting_lsn: where a batch read starts; this LSN itself is excluded.
        ending_lsn: where a batch read ends; this LSN itself is included.
        proto_version, streaming, two_phase, binary, origin, messages: options of
            START_REPLICATION for the query's own capture; None: not given.
    """

    spool: Path
    subscription: str | None = None
    table: TableName | None = None
    columns: tuple[str, ...] | None = None
    exclude_tables: tuple[TableName, ...] = ()
    dsn: str | None = None
    slot: str | None = None
    publication_names: tuple[str, ...] | None = None
    max_rows_per_batch: int = 1_000_000
    max_bytes_per_batch: int = 256 * 1024 * 1024
    change_column_prefix: str = "_"
    numeric: str = "string"
    json: str = "string"
    starting_position: Lsn | str | None = None
    copy_workers: int = COPY_WORKERS
    starting_lsn: Lsn | None = None
    ending_lsn: Lsn | None = None
    proto_version: int | None = None
    streaming: str | None = None
    two_phase: bool | None = None
    binary: bool | None = None
    origin: str | None = None
    messages: bool | None = None

    @property
    def walsender(self) -> dict[str, Any]:
        """The given options of START_REPLICATION, by their key in ``[source]``."""
        given = {name: getattr(self, name) for name in WALSENDER}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options.

        Raises:
            ConfigError: an option is unknown, not supported yet, missing or malformed.
        """
        given = _given(options)
        given.pop("snapshot", None)  # of such a query, only false is given
        if not given.get("spool"):
            raise ConfigError(
                "option spool is missing",
                hint='name the folder that capture writes to: .option("spool", "/data/spool")',
                option="spool",
            )
        # Absolute: a task may run in another working directory.
        values: dict[str, Any] = {"spool": _folder(given.pop("spool"))}
        values |= _parsed(given)
        if "table" in values and "exclude_tables" in values:
            raise ConfigError(
                "exclude_tables is for queries without table, which read all tables",
                hint="remove one of the two options",
                option="exclude_tables",
            )
        if "columns" in values and "table" not in values:
            raise ConfigError(
                "option columns is for queries of one table",
                hint="add the option table, or remove columns",
                option="columns",
            )
        if values.get("starting_position") == SNAPSHOT:
            _require(given, ("dsn", "table"), "a stream that starts with the rows of its table")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """The options of ``spark.read`` with ``snapshot``, parsed from Spark's strings.

    Attributes:
        publication_names: the rows and columns that these publications send are read; empty: the
            whole table.
    """

    dsn: str
    table: TableName
    columns: tuple[str, ...] | None = None
    publication_names: tuple[str, ...] = ()
    copy_workers: int = COPY_WORKERS
    change_column_prefix: str = "_"
    numeric: str = "string"
    json: str = "string"

    @classmethod
    def asked_for(cls, options: Mapping[str, str]) -> SnapshotOptions | None:
        """Read Spark's options; None if a snapshot is not asked for.

        Raises:
            ConfigError: an option is unknown, missing, malformed, or not for a snapshot.
        """
        given = _given(options)
        if not _boolean("snapshot", given.pop("snapshot", "false")):
            return None
        for name in given:
            if name not in OF_A_SNAPSHOT:
                raise ConfigError(
                    f"option {name} is not for a snapshot, which is read from the server",
                    hint=f"remove it; a snapshot has the options {', '.join(OF_A_SNAPSHOT)}",
                    option=name,
                )
        _require(given, ("dsn", "table"), "the snapshot of a table")
        return cls(**_parsed(given))


def _given(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    return given


def _folder(given: str) -> Path:
    """The absolute path of the option ``spool``."""
    try:
        if why := "has to be a folder" if URL.match(given) else why_no_path(given):
            raise ValueError(why)
        return home_expanded(given).absolute()
    except ValueError as error:
        raise ConfigError(f"option spool {error}", option="spool") from error


def _parsed(given: Mapping[str, str]) -> dict[str, Any]:
    return {name: _PARSERS.get(name, _text)(name, text) for name, text in given.items()}


def _require(given: Mapping[str, str], names: Sequence[str], what: str) -> None:
    for name in names:
        if not given.get(name):
            raise ConfigError(
                f"{what} needs the option {name}",
                hint='.option("table", "public.orders")'
                if name == "table"
                else "set it to the server's connection string; the rows are read from there",
                option=name,
            )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name in LATER:
            raise ConfigError(
                f"option {name} is not supported by this version",
                hint="remove it; a later version of pgsluice will support it",
                option=name,
            )
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            raise ConfigError(
                f"unknown option {name!r}",
                hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(KNOWN)}",
                option=name,
            )


def _text(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"option {name} is empty", option=name)
    return text


def _boolean(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigError(f"option {name}: {text!r} is neither true nor false", option=name)


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigError(f"option {name}: {text!r} is not a positive whole number", option=name)
    return int(text)


def _proto_version(name: str, text: str) -> int:
    if text not in ("1", "2", "3", "4"):
        raise ConfigError(f"option {name}: {text!r} is not one of 1, 2, 3, 4", option=name)
    return int(text)


def _lsn(name: str, text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise ConfigError(f"option {name}: {error}", option=name) from error


def _position(name: str, text: str) -> Lsn | str:
    if text.lower() in (EARLIEST, NOW, SNAPSHOT):
        return text.lower()
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"option {name}: {text!r} is neither {EARLIEST}, {NOW}, {SNAPSHOT} nor an LSN such as "
            "0/16B3748",
            option=name,
        ) from error


def _table(_name: str, text: str) -> TableName:
    return TableName.parse(text)


def _tables(_name: str, text: str) -> tuple[TableName, ...]:
    return TableName.parse_list(text)


def _columns(name: str, text: str) -> tuple[str, ...]:
    """Columns' names with commas between them, read by PostgreSQL's rules for identifiers."""
    parts = [part.strip() for part in _LIST_ITEM.findall(text)]
    matches = [_IDENTIFIER.fullmatch(part) for part in parts if part]
    if not matches or None in matches:
        raise ConfigError(
            f"option {name}: {text!r} is not a list of columns",
            hint='write names with commas between them, e.g. id, note, "Unit Price"',
            option=name,
        )
    return tuple(_fold(match) for match in matches if match is not None)


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ConfigError(f"option {name} names nothing", option=name)
    return names


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise ConfigError(
                f"option {name}: {text!r} is not one of {', '.join(choices)}", option=name
            )
        return text.lower()

    return parse


def _numeric(name: str, text: str) -> str:
    folded = re.sub(r"\s", "", text.lower())
    if folded in ("string", "double") or re.fullmatch(r"decimal\(38,(\d|[12]\d|3[0-8])\)", folded):
        return folded
    raise ConfigError(
        f"option numeric: {text!r} is not one of string, double, decimal(38,s)", option=name
    )


def _json(name: str, text: str) -> str:
    if text.lower() == "variant":
        raise ConfigError(
            "option json: variant is not supported by this version",
            hint="remove it; json is read as a string, which parse_json() turns into a VARIANT",
            option=name,
        )
    if text.lower() != "string":
        raise ConfigError(f"option json: {text!r} is not string", option=name)
    return "string"


def _subscription(name: str, text: str) -> str:
    # The name becomes part of a path in the spool.
    if not _SUBSCRIPTION.match(text):
        raise ConfigError(
            f"option {name}: {text!r} may have only letters, digits, _, . and -, and must not "
            "begin with . or -",
            option=name,
        )
    return text


def _prefix(_name: str, text: str) -> str:
    return text


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "subscription": _subscription,
    "table": _table,
    "columns": _columns,
    "exclude_tables": _tables,
    "publication_names": _names,
    "copy_workers": _positive,
    "max_rows_per_batch": _positive,
    "max_bytes_per_batch": _positive,
    "change_column_prefix": _prefix,
    "numeric": _numeric,
    "json": _json,
    "starting_position": _position,
    "starting_lsn": _lsn,
    "ending_lsn": _lsn,
    "proto_version": _proto_version,
    "streaming": _choice("off", "on", "parallel"),
    "two_phase": _boolean,
    "binary": _boolean,
    "origin": _choice("any", "none"),
    "messages": _boolean,
}
