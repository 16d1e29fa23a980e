"""The options of ``format("pgoutput")``, checked before anything is opened.

An option has PostgreSQL's name if there is one. As for Spark's options, case does not matter. An
unknown option is an error that suggests the nearest name: a misspelt limit that is silently ignored
would only be noticed in production.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from pgsluice.config.section import home_expanded
from pgsluice.config.validation_errors import near_or_known
from pgsluice.config.values.path_words import URL, why_no_path
from pgsluice.config.values.table_names import sql_parts
from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn

WALSENDER = ("proto_version", "streaming", "two_phase", "binary", "origin", "messages")
"""Options of START_REPLICATION, which the capture process sends to the server."""
EARLIEST, NOW, SNAPSHOT = "earliest", "now", "snapshot"
DEFAULT_SLOT = "pgsluice"
_OF_BOTH = ("snapshot", "json")
"""Options that select what is read, and have no value of their own."""
_LATER = ("publications_sql",)
"""Options that are planned for a later version."""

_RENAMED = {"publication_names": "publications"}
"""Names of earlier versions, which still work."""

_LIST_ITEM = re.compile(r'(?:"(?:[^"]|"")*"|[^",]|")+')
_SUBSCRIPTION = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, parsed by PostgreSQL's rules for identifiers."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``schema.table``; unquoted names are folded to lower case.

        Raises:
            ConfigError: the text is not two identifiers with a dot between them.
        """
        parts = sql_parts(text.strip())
        if parts is None or len(parts) != 2:
            raise ConfigError(
                f"the option table has {text!r}, which is not the name of a table",
                hint='write the name as schema.table, e.g. public.orders or "Shop"."Order Lines"',
                option="table",
            )
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def _tables(text: str) -> tuple[TableName, ...]:
    return tuple(TableName.parse(part) for part in _LIST_ITEM.findall(text) if part.strip())


def _columns(text: str) -> tuple[str, ...]:
    """Column names, separated by commas, parsed by PostgreSQL's rules for identifiers."""
    parts = [sql_parts(part.strip()) for part in _LIST_ITEM.findall(text) if part.strip()]
    if not parts or any(part is None or len(part) > 1 for part in parts):
        raise ConfigError(
            f"the option columns has {text!r}, which is not a list of column names",
            hint='write the names with commas between them, e.g. id, note, "Unit Price"',
            option="columns",
        )
    return tuple(name for part in parts for name in part or ())


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(" names nothing")
    return names


def _numeric(text: str) -> str:
    folded = re.sub(r"\s", "", text.lower())
    if folded in ("string", "double") or re.fullmatch(r"decimal\(38,(\d|[12]\d|3[0-8])\)", folded):
        return folded
    raise ValueError(f": {text!r} is not one of string, double, decimal(38,s)")


def _position(text: str) -> Lsn | str:
    if text.lower() in (EARLIEST, NOW, SNAPSHOT):
        return text.lower()
    try:
        return Lsn.parse(text)
    except ValueError:
        words = f"{EARLIEST}, {NOW}, {SNAPSHOT}"
        raise ValueError(f": {text!r} is neither {words} nor an LSN such as 0/16B3748") from None


def _lsn(text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise ValueError(f": {error}") from error


def _subscription(text: str) -> str:
    # The name becomes part of a path in the spool.
    if not _SUBSCRIPTION.match(text):
        raise ValueError(
            f": {text!r} may have only letters, digits, _, . and -, and must not begin with . or -"
        )
    return text


_NO_STORE = "has to be a folder: a query cannot read a spool in an object store yet"


def _folder(given: str | Path) -> Path:
    """The absolute path of the option ``spool``: a task may run in another working directory."""
    text = str(given)
    try:
        if why := _NO_STORE if URL.match(text) else why_no_path(text):
            raise ValueError(why)
        return home_expanded(text).absolute()
    except ValueError as error:
        raise ValueError(f" {error}") from error


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isdecimal() else text


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


_FLAG = TypeAdapter(bool)
_Text = Annotated[str, Field(min_length=1)]
_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class _Options(BaseModel):
    """The common options of all queries.

    Attributes:
        columns: the columns to read, in the table's order; None: all.
        copy_workers: how many tasks, with a connection each, read a table's rows at the same time.
        change_column_prefix: the start of the change columns' names.
        numeric: Spark's type for numeric without precision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    columns: Annotated[tuple[str, ...] | None, PlainValidator(_columns)] = None
    copy_workers: PositiveInt = 8
    change_column_prefix: str = "_"
    numeric: Annotated[str, BeforeValidator(_numeric)] = "string"

    @classmethod
    def _checked(cls, given: Mapping[str, str]) -> Self:
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _as_config_error(error) from error


class SourceOptions(_Options):
    """The options of one query, parsed from Spark's strings.

    Attributes:
        spool: the spool's folder.
        subscription: name of the record with the query's position; required for streams.
        table: the table to read with its own columns; None: envelope rows of all tables.
        exclude_tables: tables that are excluded from envelope rows.
        dsn: the server, for its catalog and for the query's own capture; None: only read the spool.
        slot: the spool's slot; None: not given.
        publications: the publications that the query's own capture requests; None: not given.
        max_rows_per_batch: the number of rows at which a batch includes no further segment.
        max_bytes_per_batch: the size at which a batch includes no further segment.
        starting_position: where a new subscription of a stream starts: ``earliest`` (the spool's
            start), ``now`` (its last commit), ``snapshot`` (with the table's rows) or an LSN. None:
            at the spool's start if it has no other subscription, else now.
        starting_lsn: where a batch read starts; this LSN itself is excluded.
        ending_lsn: where a batch read ends; this LSN itself is included.
        proto_version, streaming, two_phase, binary, origin, messages: options of
            START_REPLICATION for the query's own capture; None: not given.
    """

    spool: Annotated[Path, BeforeValidator(_folder)]
    subscription: Annotated[str | None, BeforeValidator(_subscription)] = None
    table: Annotated[TableName | None, PlainValidator(TableName.parse)] = None
    exclude_tables: Annotated[tuple[TableName, ...], PlainValidator(_tables)] = ()
    dsn: _Text | None = None
    slot: _Text | None = None
    publications: _Names | None = None
    max_rows_per_batch: PositiveInt = 1_000_000
    max_bytes_per_batch: PositiveInt = 256 * 1024 * 1024
    starting_position: Annotated[Lsn | str | None, PlainValidator(_position)] = None
    starting_lsn: Annotated[Lsn | None, PlainValidator(_lsn)] = None
    ending_lsn: Annotated[Lsn | None, PlainValidator(_lsn)] = None
    proto_version: Annotated[Literal[1, 2, 3, 4] | None, BeforeValidator(_number)] = None
    streaming: Annotated[Literal["off", "on", "parallel"] | None, BeforeValidator(_lower)] = None
    two_phase: bool | None = None
    binary: bool | None = None
    origin: Annotated[Literal["any", "none"] | None, BeforeValidator(_lower)] = None
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
        given, _ = _given(options)
        if not given.get("spool"):
            raise ConfigError(
                "the option spool is missing",
                hint="set the option to the folder of the spool, which `pgsluice run` or "
                '`pgsluice capture` writes: .option("spool", "/data/spool")',
                option="spool",
            )
        parsed = cls._checked(given)
        if "table" in given and "exclude_tables" in given:
            raise ConfigError(
                "the options table and exclude_tables exclude each other: exclude_tables is for "
                "queries that read all tables",
                hint="remove one of the two options",
                option="exclude_tables",
            )
        if "columns" in given and "table" not in given:
            raise ConfigError(
                "the option columns is for queries that read one table",
                hint="set the option table to that table, or remove the option columns",
                option="columns",
            )
        if parsed.starting_position == SNAPSHOT:
            _require(given, "a stream that starts with the rows of its table")
        return parsed


class SnapshotOptions(_Options):
    """The options of ``spark.read`` with ``snapshot``, parsed from Spark's strings.

    Attributes:
        publications: read the rows and columns that these publications send; empty: the whole
            table.
    """

    dsn: _Text
    table: Annotated[TableName, PlainValidator(TableName.parse)]
    publications: _Names = ()

    @classmethod
    def asked_for(cls, options: Mapping[str, str]) -> SnapshotOptions | None:
        """Parse Spark's options; None if no snapshot is requested.

        Raises:
            ConfigError: an option is unknown, missing, malformed, or not for a snapshot.
        """
        given, is_snapshot = _given(options)
        if not is_snapshot:
            return None
        for name in given.keys() - cls.model_fields.keys():
            known = ", ".join((*cls.model_fields, *_OF_BOTH))
            raise ConfigError(
                f"the option {name} does not work with the option snapshot, which reads from the "
                "server",
                hint=f"remove the option {name}; a snapshot accepts the options {known}",
                option=name,
            )
        _require(given, "the snapshot of a table")
        return cls._checked(given)


def _given(options: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """The given options, and whether a snapshot is requested.

    Raises:
        ConfigError: an option is unknown.
    """
    given = {_RENAMED.get(name.lower(), name.lower()): value for name, value in options.items()}
    known = (*SourceOptions.model_fields, *_OF_BOTH)
    for name in given:
        if name in _LATER:
            raise ConfigError(
                f"this version of pgsluice does not support the option {name}",
                hint=f"remove the option {name}; a later version will support it",
                option=name,
            )
        if name not in known:
            hint = near_or_known(name, known)
            raise ConfigError(f"unknown option {name!r}", hint=hint, option=name)
    _refuse_json(given.pop("json", "string"))
    try:
        return given, _FLAG.validate_python(given.pop("snapshot", "false"))
    except ValidationError as error:
        raise _as_config_error(error, "snapshot") from error


def _refuse_json(text: str) -> None:
    if text.lower() == "variant":
        raise ConfigError(
            'this version of pgsluice does not support the value "variant" of the option json',
            hint="remove the option json; pgsluice reads json columns as strings, which Spark's "
            "parse_json() turns into VARIANT",
            option="json",
        )
    if text.lower() != "string":
        raise ConfigError(
            f'the option json has {text!r}, and its only value is "string"', option="json"
        )


def _require(given: Mapping[str, str], what: str) -> None:
    hints = {
        "dsn": "set it to the server's connection string; the rows are read from there",
        "table": '.option("table", "public.orders")',
    }
    for name, hint in hints.items():
        if not given.get(name):
            raise ConfigError(f"{what} needs the option {name}", hint=hint, option=name)


def _as_config_error(error: ValidationError, option: str = "") -> ConfigError:
    """The first error, as a sentence with the option's name."""
    details = error.errors(include_url=False)[0]
    name, text = option or str(details["loc"][0]), details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            why = str(context["error"])
        case "literal_error":
            words = str(context["expected"]).replace("'", "").replace(" or ", ", ")
            why = f": {text!r} is not one of {words}"
        case "bool_parsing":
            why = f": {text!r} is neither true nor false"
        case "string_too_short":
            why = " is empty"
        case _:
            why = f": {text!r} is not a positive whole number"
    return ConfigError(f"option {name}{why}", option=name)
