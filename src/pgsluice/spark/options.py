"""The options of ``format("pgoutput")``, checked before anything is opened.

Names are PostgreSQL's where PostgreSQL has one, and are compared without case, as Spark's
are. An option that nobody knows is an error with the nearest name: a misspelt limit that is
ignored would be found in production.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    "publications_sql",
    "max_rows_per_batch",
    "max_bytes_per_batch",
    "change_column_prefix",
    "numeric",
    "json",
    "starting_lsn",
    "ending_lsn",
    "snapshot",
)
WALSENDER = ("proto_version", "streaming", "two_phase", "binary", "origin", "messages")
"""Options of START_REPLICATION: they reach the server through the capture that sends it."""
LATER = ("publications_sql", "snapshot")
"""Options of the design that a later version brings."""

_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|([^\s".]+)')
_SUBSCRIPTION = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the user wrote it, by PostgreSQL's rules for identifiers."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``schema.table``; quoted names keep their case, others are folded.

        Raises:
            ConfigError: the text is not two identifiers with a dot between.
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

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def _fold(match: re.Match[str]) -> str:
    quoted = match[1]
    return quoted.replace('""', '"') if quoted is not None else match[2].lower()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader is told, read once from Spark's strings.

    Attributes:
        spool: the spool's folder.
        subscription: whose record holds the registered position; streaming needs it.
        table: the one table to read typed; None gives envelope rows of all tables.
        dsn: the server, for the catalog, lag and a capture of our own; None: the spool alone.
        max_rows_per_batch: rows after which a batch takes no further segment.
        max_bytes_per_batch: bytes after which a batch takes no further segment.
        change_column_prefix: what the change columns' names begin with.
        numeric: how numeric without precision travels.
        json: how json and jsonb travel.
        starting_lsn: a batch read's open start.
        ending_lsn: a batch read's closed end.
        proto_version, streaming, two_phase, binary, origin, messages: START_REPLICATION's,
            for a capture of our own; None: not given. :attr:`walsender` has those given.
    """

    spool: Path
    subscription: str | None = None
    table: TableName | None = None
    dsn: str | None = None
    slot: str = "pgsluice"
    publication_names: tuple[str, ...] = ("pgsluice",)
    max_rows_per_batch: int = 1_000_000
    max_bytes_per_batch: int = 256 * 1024 * 1024
    change_column_prefix: str = "_"
    numeric: str = "string"
    json: str = "string"
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
        """What was asked of the walsender by name: keys of a configuration's ``[source]``."""
        given = {name: getattr(self, name) for name in WALSENDER}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options.

        Raises:
            ConfigError: an option is unknown, of a later version, missing or malformed.
        """
        given = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(given)
        if not given.get("spool"):
            raise ConfigError(
                "option spool is missing",
                hint='name the folder that capture writes to: .option("spool", "/data/spool")',
                option="spool",
            )
        # Absolute at once: the reader travels to tasks that may have another folder.
        values: dict[str, Any] = {"spool": Path(given.pop("spool")).expanduser().absolute()}
        for name, text in given.items():
            values[name] = _READERS.get(name, _text)(name, text)
        return cls(**values)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name in LATER:
            raise ConfigError(
                f"option {name} is not supported by this version",
                hint="it comes with a later version of pgsluice",
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


def _table(_name: str, text: str) -> TableName:
    return TableName.parse(text)


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ConfigError(f"option {name} names nothing", option=name)
    return names


def _choice(*choices: str) -> Any:
    def read(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise ConfigError(
                f"option {name}: {text!r} is not one of {', '.join(choices)}", option=name
            )
        return text.lower()

    return read


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
            hint="leave it out; json travels as string, and parse_json() makes it a VARIANT",
            option=name,
        )
    if text.lower() != "string":
        raise ConfigError(f"option json: {text!r} is not string", option=name)
    return "string"


def _subscription(name: str, text: str) -> str:
    # The name becomes a folder below the spool.
    if not _SUBSCRIPTION.match(text):
        raise ConfigError(
            f"option {name}: {text!r} has characters that are not letters, digits, _ . or -",
            option=name,
        )
    return text


def _prefix(_name: str, text: str) -> str:
    return text


_READERS: Mapping[str, Any] = {
    "subscription": _subscription,
    "table": _table,
    "publication_names": _names,
    "max_rows_per_batch": _positive,
    "max_bytes_per_batch": _positive,
    "change_column_prefix": _prefix,
    "numeric": _numeric,
    "json": _json,
    "starting_lsn": _lsn,
    "ending_lsn": _lsn,
    "proto_version": _proto_version,
    "streaming": _choice("off", "on", "parallel"),
    "two_phase": _boolean,
    "binary": _boolean,
    "origin": _choice("any", "none"),
    "messages": _boolean,
}
