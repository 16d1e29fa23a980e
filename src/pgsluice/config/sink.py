"""``sink = { type = "…", … }``: each type of sink brings its own model, also from elsewhere.

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
from typing import Annotated, Any

from pydantic import (
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from pgsluice.config.catalog_table import CatalogTable
from pgsluice.config.section import Section
from pgsluice.config.validation_errors import InvalidSink, choices, did_you_mean, sentences
from pgsluice.errors import ConfigError

GROUP = "pgsluice.sinks"
_BUILT_IN = {"delta": EntryPoint("delta", "pgsluice.sinks.delta.config:DeltaSinkConfig", GROUP)}
_PLANNED = ("postgres", "iceberg")


class SinkConfig(Section):
    """The base of all sinks' models; it knows how the sink is made.

    Attributes:
        type: the entry point's name.
    """

    type: str

    @property
    @abstractmethod
    def target(self) -> str:
        """Where the sink writes, without secrets. No two subscriptions may have the same."""

    def why_unreachable(self) -> str | None:
        """Why the targets cannot be reached, as one sentence; None: nothing is known against it.

        ``pgsluice check`` asks. For a folder on a disk it asks only if the folder can be written.
        """
        return None

    @property
    def default_apply_interval_s(self) -> float:
        """The least time between two merges of a table where the configuration names none."""
        return 0.0

    @property
    def confirms_after_s(self) -> float:
        """Seconds after which a commit is looked at once more, because other programs may overwrite
        it in the sink's store; the spool keeps its changes so long. 0: nobody can."""
        return 0.0

    def is_overwritten(self, namespace: str, name: str, version: int) -> bool:
        """Whether another program has overwritten our commit that made a table's version."""
        return False

    def reading_options(self) -> dict[str, str]:
        """How deltalake reads the targets where they lie in an object store; it has secrets.

        Raises:
            StoreError: what they refer to is not on this machine.
        """
        return {}

    def table_names(self) -> tuple[str, ...]:
        """The tables, as ``schema.table``, that settings of the sink name.

        ``pgsluice check`` and ``run`` say which of them are not sent.
        """
        return ()

    def catalog_table(self, namespace: str, name: str) -> CatalogTable | None:
        """How the catalog of Spark's session is to have a target; None: it is not registered.

        Args:
            namespace, name: the target's.
        """
        return None

    def lacking_for_catalog(self, spark: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        """What the session's settings lack to register the targets, each with what to do.

        ``pgsluice check`` asks.
        """
        return ()

    def advice(self, namespace: str, name: str, merge_s: float) -> str | None:
        """What another setting of the sink would gain for a table; None: nothing is known of that.

        ``pgsluice status`` asks. The sentence ends with a line that begins with an arrow and says
        what to do.

        Args:
            namespace, name: of the table.
            merge_s: how long its last merge took.
        """
        return None

    @abstractmethod
    def make(self, *, foreign_writes: str, cut_retention_s: float) -> object:
        """The sink: a :class:`pgsluice.sinks.contract.Sink`.

        Args:
            foreign_writes: ``park`` a table whose data others changed, or ``allow`` it.
            cut_retention_s: how long readers may use a version that a cut names.

        Raises:
            ConfigError: what the sink needs is not installed.
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


def _known_types() -> dict[str, EntryPoint]:
    return {**{point.name: point for point in entry_points(group=GROUP)}, **_BUILT_IN}


def _model(type_name: Any) -> type[SinkConfig]:
    if not isinstance(type_name, str):
        raise InvalidSink(['"sink" needs a "type", as in { type = "delta", path = "…" }'])
    # A sink is made for each table of a batch: built-in ones need no search for entry points.
    known = _BUILT_IN if type_name in _BUILT_IN else _known_types()
    if type_name not in known:
        if type_name in _PLANNED:
            what = f'"type" = "{type_name}": only {choices(known)} is supported yet'
        else:
            close = did_you_mean(type_name, known)
            what = f'unknown type "{type_name}"{close or f"; it can be {choices(known)}"}'
        raise InvalidSink([f"sink: {what}"])
    try:
        model = known[type_name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidSink(
            [f'sink: type "{type_name}" ({known[type_name].value}) cannot be loaded: {error}']
        ) from error
    if not (isinstance(model, type) and issubclass(model, SinkConfig)):
        raise InvalidSink(
            [f'sink: type "{type_name}" ({known[type_name].value}) is no pgsluice SinkConfig']
        )
    if lacking := choices(model.__abstractmethods__):
        raise InvalidSink(
            [f'sink: type "{type_name}" ({known[type_name].value}) does not define {lacking}']
        )
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
