"""The sections of the configuration, their keys, and the values that each key accepts.

Attributes have the names of the keys in the file. Paths are absolute once read. A wrong value
is a pydantic error whose message continues a sentence that begins with the key; see
:mod:`pgsluice.config.validation_errors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator as After
from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo
from pydantic import model_validator as _model_validator

from pgsluice.config.monitor import MonitorConfig
from pgsluice.config.section import Seconds, Section, Size, StoreOptions, base_folder, home_expanded
from pgsluice.config.sink import AnySink, TablePath
from pgsluice.config.values.dsn import has_password, join_conninfo, why_no_dsn
from pgsluice.config.values.path_words import URL, why_no_path
from pgsluice.config.values.secrets import why_no_secret
from pgsluice.config.values.target_names import TargetNames, why_no_names
from pgsluice.errors import ConfigError
from pgsluice.stores.addresses import cloud_of, why_no_address
from pgsluice.stores.spool_place import SpoolPlace

_TYPE = re.compile(r"\A(?:string|double|decimal\(\d+, ?\d+\)|struct|map|variant)\Z")


def _path(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        if URL.match(value):
            raise ValueError("has to be a path on a disk")
        if not value:
            raise ValueError("must not be empty")
        if why := why_no_path(value):
            raise ValueError(why)
        value = Path(value)
    if isinstance(value, Path):
        path = (base_folder(info) / home_expanded(str(value))).absolute()
        # In JSON mode (a configuration handed to another process) pydantic wants the path as text.
        return str(path) if info.mode == "json" else path
    return value


def _spool_path(value: Any, info: ValidationInfo) -> Any:
    """A folder on a disk as a path, the URL of an object store as text."""
    if not isinstance(value, str | Path):
        raise ValueError("has to be text in quotes")
    if isinstance(value, str) and URL.match(value):
        if why := why_no_address(value):
            raise ValueError(why)
        if cloud_of(value) is None:
            raise ValueError("has to be a path without file:// if it is on a disk")
        return value.rstrip("/")
    return Path(_path(value, info))


def _why_no_identifier(value: str) -> str | None:
    is_one = 1 <= len(value.encode()) <= 63 and "\0" not in value
    return None if is_one else "has to hold names of 1 to 63 bytes"


def _qualified(parts: int, example: str) -> Any:
    def why(names: Collection[str]) -> str | None:
        short = (name for name in names if name.count(".") < parts - 1)
        return next((f'needs names such as "{example}", not "{name}"' for name in short), None)

    return _refused(why)


def _refused(why: Callable[[Any], str | None]) -> Any:
    """Refuse a value for which ``why`` has the rest of a sentence about the key."""

    def check(value: Any) -> Any:
        if reason := why(value):
            raise ValueError(reason)
        return value

    return After(check)


def _matching(pattern: str, reason: str) -> Any:
    form = re.compile(rf"\A(?:{pattern})\Z")
    return _refused(lambda value: None if form.match(value) else reason)


Dsn = Annotated[str, _refused(why_no_dsn)]
Slot = Annotated[
    str,
    _matching(r"[a-z0-9_]{1,63}", "has to be a slot's name: 1 to 63 characters of a-z, 0-9 and _"),
]
FolderName = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}",
        "becomes a folder's name: at most 100 letters, digits, _, - and ., not - or . first",
    ),
]
NumericType = Annotated[
    str,
    _matching(
        r"string|double|decimal\(38, ?(?:[0-9]|[12][0-9]|3[0-8])\)",
        'can be "string", "double" or "decimal(38,s)" with s from 0 to 38',
    ),
]
SpoolPath = Annotated[Path | str, PlainValidator(_spool_path), PlainSerializer(str)]
FilePath = Annotated[Path, BeforeValidator(_path)]
Identifier = Annotated[str, _refused(_why_no_identifier)]


class SourceConfig(Section):
    """``[source]``: the server, the slot, and what the slot sends.

    Attributes:
        dsn: the connection string, as libpq takes it. No message and no log shows its secrets.
        password_command: a command of the shell that prints the password, such as a cloud's token.
            Each process calls it before its first connection, executors included, and again when
            the server refuses the password; default: libpq finds the password (in the dsn,
            ``.pgpass``, a service file or ``PGPASSWORD``).
        slot: the replication slot. The first run creates it.
        publications: publications on the server. The first run creates those that are missing.
        proto_version: the version of pgoutput's protocol; default: the newest that the server
            supports.
        streaming: whether the server sends open transactions early; default: ``parallel`` from 16
            on, ``on`` in 14 and 15, ``off`` before, and ``off`` with ``messages``.
        two_phase: whether the server sends prepared transactions at PREPARE, from 15 on. It is
            set when the slot is created, and stays.
        binary: whether the server sends values in binary form, from 14 on.
        messages: whether the server sends what ``pg_logical_emit_message`` writes, from 14 on.
        origin: ``none`` excludes what the source itself received by replication, from 16 on.
        catalog_poll_s: time between two catalog refreshes.
        connect_timeout_s: how long connecting may take.
        silence_timeout_s: how long the server may send nothing while it streams, and how long it
            may leave a question of capture's unanswered; 0: for ever.
    """

    dsn: Dsn = Field(repr=False)
    password_command: str | None = Field(default=None, min_length=1)
    slot: Slot = "pgsluice"
    publications: tuple[Identifier, ...] = Field(default=("pgsluice",), min_length=1)
    proto_version: int | None = Field(default=None, ge=1, le=4)
    streaming: Literal["off", "on", "parallel"] | None = None
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Literal["any", "none"] = "any"
    catalog_poll_s: Seconds = Field(default=10.0, gt=0)
    connect_timeout_s: Seconds = Field(default=30.0, ge=0)
    silence_timeout_s: Seconds = Field(default=60.0, ge=0)

    @property
    def silence_s(self) -> float | None:
        """How long the server may send nothing, in seconds; None: for ever."""
        return self.silence_timeout_s or None

    @property
    def conninfo(self) -> str:
        """The connection string, with the command that prints its password if there is one."""
        return join_conninfo(self.dsn, self.password_command)

    @_model_validator(mode="after")
    def _keys_fit_each_other(self) -> SourceConfig:
        if len(set(self.publications)) < len(self.publications):
            raise ValueError('"publications" has a name twice')
        if self.password_command is not None and has_password(self.dsn):
            raise ValueError('has a password in "dsn", and "password_command" for another one')
        return self


_DEFAULTS_OF_STORES = {"segment_bytes": 32 * 2**20, "segment_ms": 1000}


class SpoolConfig(Section):
    """``[spool]``: where received changes are kept.

    Attributes:
        path: a folder on a durable disk, or the URL of a folder in an object store.
        state: for a spool in a store: a folder on a disk of this machine, for locks, command files
            and status; each machine has its own, and it may be lost.
        storage_options: the options of the object store, as a sink has them.
        segment_bytes: a segment ends at this size; default: 16 MiB, and 32 MiB in a store.
        segment_ms: milliseconds between two segments; after a longer pause one ends at once.
            Default: 200, and 1000 in a store, where each of them is paid for.
        retention: how long segments are kept after every subscription applied them.
        max_bytes: the spool's limit; default: 90 % of the disk. All transactions that are open or
            prepared at the same time have to fit.
        shared: the folder is mounted at the same path on all executors, and they can write it.
    """

    path: SpoolPath
    state: FilePath | None = None
    storage_options: StoreOptions = Field(default_factory=dict, repr=False)
    segment_bytes: Size = Field(default=16 * 2**20, ge=1024, le=2**30)
    segment_ms: int = Field(default=200, ge=1, le=3_600_000)
    retention: Seconds = Field(default=0.0, ge=0)
    max_bytes: Size | None = Field(default=None, ge=2**20)
    shared: bool = False

    @property
    def folder(self) -> Path:
        """The folder of this machine's files: the spool, if it is on a disk."""
        return self.path if isinstance(self.path, Path) else self.state or Path()

    @property
    def place(self) -> SpoolPlace:
        """The location of the spool, with this machine's folder and the options of the store."""
        if isinstance(self.path, Path):
            return SpoolPlace(self.path)
        return SpoolPlace(self.folder, self.path, dict(self.storage_options))

    @_model_validator(mode="before")
    @classmethod
    def _defaults_of_stores(cls, raw: Any) -> Any:
        is_remote = isinstance(raw, dict) and URL.match(str(raw.get("path", "")))
        return {**_DEFAULTS_OF_STORES, **raw} if is_remote else raw

    @_model_validator(mode="after")
    def _state_is_of_a_store(self) -> SpoolConfig:
        is_remote = not isinstance(self.path, Path)
        if is_remote and self.state is None:
            raise ValueError(
                'needs "state", a folder on a disk of this machine, for a "path" in an object '
                "store: locks, command files and status are there"
            )
        if is_remote and self.shared:
            raise ValueError('needs no "shared": all machines see an object store')
        if not is_remote and (self.state is not None or self.storage_options):
            name = "storage_options" if self.state is None else "state"
            raise ValueError(f'has "{name}", which only a "path" in an object store may have')
        return self


class PublicationsConfig(Section):
    """``[publications]``: the statements of pgsluice's own publications, or their file.

    Attributes:
        file: a file with CREATE PUBLICATION statements in the syntax of PostgreSQL 15 and newer.
        sql: the same statements, in the configuration itself.
    """

    file: FilePath | None = None
    sql: str | None = None

    @_model_validator(mode="after")
    def _one_of_two(self) -> PublicationsConfig:
        if (self.file is None) == (self.sql is None):
            raise ValueError('needs either "file" or "sql"')
        return self


LEAST_RATE = 2**20
"""In bytes per second: a read between two pauses is twice as much."""


class VerifyConfig(Section):
    """``verify``: the schedule on which a run compares tables with their targets.

    Attributes:
        every: how often each table is verified; the first time is soon after its copy.
        rate: how much of the source a verification reads per second, 1 MiB or more; default: no
            limit.
    """

    every: Annotated[Seconds, Field(gt=0)]
    rate: Annotated[Size, Field(ge=LEAST_RATE)] | None = None


class SubscriptionConfig(Section):
    """``[[subscription]]``: what one target gets, and how.

    Attributes:
        name: it names the subscription's folder in the spool.
        publications: names of pgsluice's own publications; default: everything that the slot sends.
        mode: what targets have: the ``current`` rows, every change as a row (``changelog``), or
            every version of a row (``history``).
        enabled: whether ``pgsluice run`` runs the subscription.
        copy_data: whether a table begins with an initial copy. Without one, changes of rows that
            are older than the subscription are skipped.
        adopt: a table that was never copied into this spool takes over a target that pgsluice wrote
            before, from whatever spool: it is compared with the source, and only the ranges of
            keys that differ are read again.
        copy_workers: the most connections that copies read with.
        copy_cores: the most tasks of copies that run beside a stream; default: half of those that
            Spark runs at once.
        copy_rate: how much a copy may read per second; default: no limit.
        sink: the target: its ``type``, and the keys of that type.
        max_rows_per_batch: rows after which a batch takes no further segment.
        max_bytes_per_batch: bytes after which a batch takes no further segment.
        apply_interval_s: the least time between two merges of a table; default: 0, and 10 s in an
            object store, where each of them is paid for.
        cut_interval_s: how often all tables reach one position, which readers may rely on.
        cut_retention_s: how long readers may use the table versions of such a position.
        key: table -> columns that identify a row, as ``"public.t" = ["a", "b"]``, for tables
            without a key.
        types: column -> type, as ``"public.t.c" = "decimal(20,4)"``: ``string`` for columns of any
            type, ``struct`` for ranges, multiranges, composites and arrays of them, ``map`` for
            hstore, ``variant`` for json and jsonb, the others for numeric ones.
        exclude: columns that the target does not have, as ``"public.t.c"``.
        mask: column -> what the target has in place of its values, as ``"public.t.c" = "hash"``:
            ``null``, ``hash`` (HMAC-SHA256 of the value's text) or ``last4`` (its last four
            characters).
        mask_key: the secret of ``hash``: ``"env:NAME"`` names an environment variable,
            ``"file:/path"`` a file; at least 16 bytes.
        rename: schema, table or column -> another name at the target, as ``"public.orders" =
            "sales_orders"``; everything else keeps the source's names.
        numeric: the target's type for numeric without precision: ``string``, ``double`` or
            ``decimal(38,s)``.
        json_as: the target's type for json and jsonb; readers have to know ``variant``.
        on_unrepresentable: a value that its column cannot hold becomes NULL and a row of the
            rejects table (``reject``), or parks the table (``fail``).
        rejects: folder or URL of the rejects table; default: ``pg_rejects.<name>`` in the sink.
        foreign_writes: ``park`` a table whose data others changed, or ``allow`` it.
        change_column_prefix: what the names of the columns begin with that a change log or a
            history has beside those of the table.
        log_retention: how long a change log reaches back at least; older rows go once a later copy
            or TRUNCATE makes them unnecessary. Default: for ever.
        deleted_column: deleted rows stay, with the time of their delete in this column.
        verify: compare tables with their targets on a schedule, as ``{ every = "24h", rate =
            "20MiB" }``, and repair those that differ; default: only if the source gives a reason.
    """

    name: FolderName
    publications: tuple[Identifier, ...] | None = Field(default=None, min_length=1)
    mode: Literal["current", "changelog", "history"] = "current"
    enabled: bool = True
    copy_data: bool = True
    adopt: bool = False
    copy_workers: int = Field(default=8, ge=1, le=8)
    copy_cores: int | None = Field(default=None, ge=1)
    copy_rate: Size | None = Field(default=None, ge=1)
    sink: AnySink
    max_rows_per_batch: int = Field(default=1_000_000, ge=1)
    max_bytes_per_batch: Size = Field(default=256 * 2**20, ge=1)
    apply_interval_s: Seconds | None = Field(default=None, ge=0)
    cut_interval_s: Seconds = Field(default=60.0, gt=0)
    cut_retention_s: Seconds = Field(default=600.0, ge=0)
    key: Annotated[dict[str, tuple[Identifier, ...]], _qualified(2, "public.t")] = Field(
        default_factory=dict
    )
    types: Annotated[dict[str, str], _qualified(3, "public.t.c")] = Field(default_factory=dict)
    exclude: Annotated[tuple[str, ...], _qualified(3, "public.t.c")] = ()
    mask: Annotated[dict[str, Literal["null", "hash", "last4"]], _qualified(3, "public.t.c")] = (
        Field(default_factory=dict)
    )
    mask_key: Annotated[str, _refused(why_no_secret)] | None = None
    rename: Annotated[dict[str, str], _refused(why_no_names)] = Field(default_factory=dict)
    numeric: NumericType = "string"
    json_as: Literal["string", "variant"] = Field(default="string", alias="json")
    on_unrepresentable: Literal["reject", "fail"] = "reject"
    rejects: TablePath | None = None
    foreign_writes: Literal["park", "allow"] = "park"
    change_column_prefix: str = Field(default="_", min_length=1)
    log_retention: Seconds | None = Field(default=None, ge=0)
    deleted_column: Identifier | None = None
    verify: VerifyConfig | None = None

    @_model_validator(mode="after")
    def _keys_fit_each_other(self) -> SubscriptionConfig:
        if self.mode == "current" and self.change_column_prefix != "_":
            raise ValueError('"change_column_prefix" needs mode = "changelog" or "history"')
        if self.mode != "changelog" and self.log_retention is not None:
            raise ValueError('"log_retention" needs mode = "changelog"')
        chosen = [*self.types, *self.mask, *self.exclude]
        if twice := next((name for name in chosen if chosen.count(name) > 1), None):
            raise ValueError(
                f'names the column "{twice}" twice in "types", "mask" and "exclude": a masked '
                "column is a string, and an excluded one is not there"
            )
        if "hash" in self.mask.values() and self.mask_key is None:
            raise ValueError(
                'needs "mask_key" for the mask "hash": the name of a secret, such as '
                '"env:PGSLUICE_MASK_KEY"'
            )
        if self.mode != "current" and (self.adopt or self.deleted_column):
            raise ValueError('"adopt" and "deleted_column" need mode = "current"')
        if self.mode == "changelog" and self.verify is not None:
            raise ValueError(
                '"verify" has no effect with mode = "changelog": a comparison has the whole log in '
                "memory. `pgsluice verify CONFIG` compares change logs, in a process of its own"
            )
        if self.verify is not None and self.sink.type != "delta":
            raise ValueError('"verify" needs a sink of the type "delta"')
        if self.rejects is not None and self.sink.type != "delta":
            raise ValueError('"rejects" needs a sink of the type "delta"')
        if self.adopt and self.deleted_column:
            raise ValueError('"adopt" has no effect with "deleted_column"')
        if not all(map(_TYPE.match, self.types.values())):
            raise ValueError(
                '"types": only "string", "struct", "map", "variant", "double", "decimal(p,s)" are '
                "supported yet"
            )
        return self

    @property
    def names(self) -> TargetNames:
        """The names that tables and columns have at the target, by ``rename``."""
        return TargetNames(self.rename)

    @property
    def merge_interval_s(self) -> float:
        """The least time between two merges of a table, in seconds."""
        asked = self.apply_interval_s
        return self.sink.default_apply_interval_s if asked is None else asked


class Config(Section):
    """The whole file.

    Attributes:
        subscriptions: the sections ``[[subscription]]``, in the file's order.
        spark: Spark's settings, as strings.
        path: the file; None for a configuration built in Python.
    """

    source: SourceConfig
    spool: SpoolConfig
    publications: PublicationsConfig | None = None
    subscriptions: tuple[SubscriptionConfig, ...] = Field(default=(), alias="subscription")
    spark: dict[str, str] = Field(default_factory=dict)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    path: Path | None = None

    def subscription(self, name: str) -> SubscriptionConfig:
        """The subscription of this name.

        Raises:
            ConfigError: there is none.
        """
        for subscription in self.subscriptions:
            if subscription.name == name:
                return subscription
        names = ", ".join(f'"{known.name}"' for known in self.subscriptions) or "none"
        raise ConfigError(
            f'the configuration has no subscription "{name}"',
            hint=f"its subscriptions are: {names}",
        )
