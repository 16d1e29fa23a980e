"""``sink = { type = "…", … }``: each type of sink has its own model, maybe in another package.

A package adds a type by an entry point in the group ``pgsluice.sinks``. The entry point's name
is the type, its object a subclass of :class:`SinkConfig`::

    [project.entry-points."pgsluice.sinks"]
    parquet = "my_package:ParquetSinkConfig"

A sink is loaded only when a configuration names its type.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from pgsluice.config.section import Section, base_folder, home_expanded
from pgsluice.config.validation_errors import InvalidSink, choices, did_you_mean, sentences
from pgsluice.config.values.path_words import URL, why_no_folders
from pgsluice.config.values.target_names import CatalogTable, TargetNames
from pgsluice.errors import ConfigError
from pgsluice.stores.addresses import why_no_address

GROUP = "pgsluice.sinks"
_BUILT_IN = {"delta": EntryPoint("delta", "pgsluice.sinks.delta.config:DeltaSinkConfig", GROUP)}
_PLANNED = ("postgres", "iceberg")


def _table_path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if URL.match(value):
        if why := why_no_address(value):
            raise ValueError(why)
        return value
    if why := why_no_folders(value):
        raise ValueError(why)
    return str((base_folder(info) / home_expanded(value)).absolute())


TablePath = Annotated[str, BeforeValidator(_table_path)]
"""The location of one table: a folder or URL."""


class SinkConfig(Section):
    """The base class of all sinks' models, which also creates the sink.

    Attributes:
        type: the entry point's name.
    """

    type: str

    @property
    @abstractmethod
    def target(self) -> str:
        """Where the sink writes, without secrets. No two subscriptions may have the same."""

    @property
    def folder_on_disk(self) -> Path | None:
        """The fixed folder at the start of the target's path; None if it is not on a disk."""
        if "://" in self.target or not self.target.startswith("/"):
            return None
        return Path(self.target.partition("{")[0].rpartition("/")[0] or "/")

    def why_unreachable(self) -> str | None:
        """Why the targets cannot be reached, as one sentence; None: no problem is known.

        ``pgsluice check`` calls this. For a folder on a disk, it first checks that the folder is
        writable.
        """
        return None

    @property
    def default_apply_interval_s(self) -> float:
        """The least time between two merges of a table if the configuration has none, in
        seconds."""
        return 0.0

    @property
    def confirms_after_s(self) -> float:
        """Seconds after which to check a commit again, because other programs may overwrite it in
        the sink's store; until then, the spool keeps its changes. 0: no program can."""
        return 0.0

    def is_overwritten(self, namespace: str, name: str, version: int) -> bool:
        """Whether another program has overwritten pgsluice's commit of a table's version."""
        return False

    def reading_options(self) -> dict[str, str]:
        """deltalake's options for reading the targets in an object store, including secrets.

        Raises:
            StoreError: this machine lacks something that they refer to.
        """
        return {}

    def table_names(self) -> tuple[str, ...]:
        """The tables in the sink's settings, as ``schema.table``.

        ``pgsluice check`` and ``run`` warn about those that are not published.
        """
        return ()

    def column_names(self) -> tuple[tuple[str, str], ...]:
        """The columns in the sink's settings, each with its table as ``schema.table``."""
        return ()

    def check_table(self, title: str, schema: Any) -> None:
        """Refuse a table that cannot have a target by these settings, for ``pgsluice check``.

        Args:
            title: the source's ``schema.table``.
            schema: Arrow's schema of the target, with the names there.

        Raises:
            TableError: it cannot.
        """

    def with_names(self, names: TargetNames) -> SinkConfig:
        """The settings with the columns' names at the target; other settings of tables keep the
        source's names."""
        return self

    def location(self, namespace: str, name: str) -> str | None:
        """The path or URL of a target's files; None: its files are not for other readers.

        Args:
            namespace, name: the target's schema and name.
        """
        return None

    def catalog_table(self, namespace: str, name: str) -> CatalogTable | None:
        """The entry of a target in the catalog of Spark's session; None: it is not registered.

        Args:
            namespace, name: the target's schema and name.
        """
        return None

    def lacking_for_catalog(
        self, spark: Mapping[str, str], version: str | None
    ) -> Iterable[tuple[str, str]]:
        """Missing Spark settings for registering the targets, each with what to do.

        ``pgsluice check`` calls this.

        Args:
            spark: the settings of the session.
            version: the version of Spark, such as ``4.1.2``; None: unknown.
        """
        return ()

    def advice(self, namespace: str, name: str, merge_s: float, title: str) -> str | None:
        """The gain of another setting of the sink for a table; None: no gain is known.

        ``pgsluice status`` calls this. The text ends with a line that starts with an arrow and says
        what to do.

        Args:
            namespace, name: the target's schema and name.
            merge_s: the duration of its last merge.
            title: the source's ``schema.table``, for the text.
        """
        return None

    @abstractmethod
    def make(self, *, foreign_writes: str, cut_retention_s: float) -> object:
        """Create the sink: a :class:`pgsluice.sinks.contract.Sink`.

        Args:
            foreign_writes: ``park`` a table whose data others changed, or ``allow`` it.
            cut_retention_s: how long readers may use a version of a consistent checkpoint, in
                seconds.

        Raises:
            ConfigError: a required package is not installed.
        """


def parse_sink(options: Mapping[str, Any]) -> SinkConfig:
    """A sink's model by its type.

    Raises:
        ConfigError: there is no such type, or its options are wrong.
    """
    try:
        return _validated(options, context=None)
    except InvalidSink as error:
        raise ConfigError("; ".join(error.mistakes)) from None


def _model(type_name: Any) -> type[SinkConfig]:
    if not isinstance(type_name, str):
        raise InvalidSink(['"sink" needs a "type", as in { type = "delta", path = "…" }'])
    # A sink is made for each table of a batch: built-in ones need no search for entry points.
    known = _BUILT_IN
    if type_name not in known:
        known = {point.name: point for point in entry_points(group=GROUP)} | _BUILT_IN
    if type_name not in known:
        if type_name in _PLANNED:
            what = f'"type" = "{type_name}": only {choices(known)} is supported yet'
        else:
            close = did_you_mean(type_name, known)
            what = f'unknown type "{type_name}"{close or f"; it can be {choices(known)}"}'
        raise InvalidSink([f"sink: {what}"])
    title = f'sink: type "{type_name}" ({known[type_name].value})'
    try:
        model = known[type_name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidSink([f"{title} cannot be loaded: {error}"]) from error
    if not (isinstance(model, type) and issubclass(model, SinkConfig)):
        raise InvalidSink([f"{title} is no pgsluice SinkConfig"])
    if lacking := choices(model.__abstractmethods__):
        raise InvalidSink([f"{title} does not define {lacking}"])
    return model


def _validated(options: Mapping[str, Any], context: Any, *, is_json: bool = False) -> SinkConfig:
    model = _model(options.get("type"))
    try:
        if is_json:
            return model.model_validate_json(json.dumps(options), context=context)
        return model.model_validate(options, context=context)
    except ValidationError as error:
        raise InvalidSink(sentences(error, model, "sink")) from None


def _any_sink(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        return _validated(value, info.context, is_json=info.mode == "json")
    return handler(value)


AnySink = Annotated[SerializeAsAny[SinkConfig], WrapValidator(_any_sink)]
"""A section of any type of sink, validated by the sink's own model."""
