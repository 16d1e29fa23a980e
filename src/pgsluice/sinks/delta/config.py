"""``sink = { type = "delta", … }``; reading it needs neither deltalake nor Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic import field_validator as _field_validator

from pgsluice.config import Seconds, SinkConfig, TargetPath
from pgsluice.config.section import StoreOptions
from pgsluice.config.validation_errors import choices, did_you_mean
from pgsluice.config.values.path_words import why_no_path
from pgsluice.config.values.target_names import (
    CatalogTable,
    TargetNames,
    catalog_name,
    why_no_catalog_name,
)
from pgsluice.errors import ConfigError
from pgsluice.sinks.delta.catalog_settings import lacking_settings
from pgsluice.sinks.lake.layout.terms import Term, why_no_terms
from pgsluice.stores.addresses import cloud_of, why_no_address

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Sink
    from pgsluice.sinks.delta.sink import DeltaSink

Merge = Literal["auto", "on_read", "on_write"]

# Tasks get the sink as JSON, which has lists.
Columns = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
]

SLOW_MERGE_S = 0.2
"""The duration of a merge, in seconds, from which status suggests a cheaper way."""


_OF_OTHER_WRITERS = (
    "delta.autoOptimize.autoCompact",
    "delta.autoOptimize.optimizeWrite",
    "delta.checkpoint.writeStatsAsJson",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpointInterval",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
)
"""Delta's properties that need no feature, and change nothing that pgsluice relies on. Not those of
columns with statistics: deltalake's PyArrow dataset skips files that lack them."""
_OURS = {
    "delta.logretentionduration": "history_retention",
    "delta.deletedfileretentionduration": "history_retention",
    "delta.enabledeletionvectors": "merge",
}


def _why_no_properties(names: Iterable[str]) -> str | None:
    """Why a table cannot have these properties; None: it can."""
    for name in names:
        lower = name.lower()
        if lower.startswith("pgsluice."):
            why = "which pgsluice itself keeps"
        elif lower in _OURS:
            why = f"which pgsluice itself keeps: set {_OURS[lower]} in the sink"
        elif name in _OF_OTHER_WRITERS or (name.strip() and not lower.startswith("delta.")):
            continue
        elif not name.strip():
            why = "which is empty"
        else:
            known = "; it supports " + choices(_OF_OTHER_WRITERS)
            why = f"which pgsluice does not support{did_you_mean(name, _OF_OTHER_WRITERS) or known}"
        return f'has the property "{name}", {why}'
    return None


_WHY_NOT = {
    "path": why_no_address,
    "cache_dir": why_no_path,
    "register_as": why_no_catalog_name,
    "partition_by": why_no_terms,
    "cluster_by": why_no_terms,
    "table_properties": _why_no_properties,
}


class DeltaSinkConfig(SinkConfig):
    """Delta tables under one path.

    Attributes:
        type: ``delta``.
        path: a folder or URL with ``{table}`` and perhaps ``{schema}``.
        history_retention: seconds that readers may go back; 0: only to consistent checkpoints.
        merge: how changes get into a table: ``on_write`` rewrites the files of changed rows,
            ``on_read`` marks these rows as dead by deletion vectors, ``auto`` decides it by the
            table's size when the table is made.
        merge_tables: the same for single tables, by ``schema.table``.
        partition_by: table -> columns whose values the rows of a file share, and parts of times:
            ``"public.t" = ["region", "month(created_at)"]``. ``year``, ``month``, ``day`` and
            ``hour`` add a column with the part, such as ``created_at_month``.
        cluster_by: table -> columns by which new files are sorted, so that readers skip more.
        table_properties: table -> properties of its target: names of your own, and those of
            Delta's that tell other writers how to write.
        cache_dir: a folder of each executor, for what finds the rows of keys, and rows that are
            read again.
        storage_options: keys, region, endpoint and more of the object store, as deltalake names
            them. ``"env:NAME"`` stands for an environment variable.
        register_as: the tables' names in the catalog of Spark's session, such as
            ``{schema}.{table}`` or ``main.{schema}.{table}``; default: no catalog has them.
    """

    type: Literal["delta"] = "delta"
    path: TargetPath
    history_retention: Seconds = Field(default=0.0, ge=0)
    merge: Merge = "auto"
    merge_tables: dict[str, Merge] = Field(default_factory=dict)
    partition_by: dict[str, Columns] = Field(default_factory=dict)
    cluster_by: dict[str, Columns] = Field(default_factory=dict)
    table_properties: dict[str, dict[str, str]] = Field(default_factory=dict)
    cache_dir: str | None = Field(default=None, min_length=1)
    storage_options: StoreOptions = Field(default_factory=dict, repr=False)
    # Not an attribute "register", which classes with abstract methods have as a method.
    register_as: str | None = Field(default=None, alias="register")

    @_field_validator(*_WHY_NOT)
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        why_not = _WHY_NOT[str(info.field_name)]
        for table, each in value.items() if isinstance(value, dict) else [(None, value)]:
            if each is not None and (why := why_not(each)):
                raise ValueError(why if table is None else f'"{table}" {why}')
        return value

    @property
    def default_apply_interval_s(self) -> float:
        """The default of an object store: a batch of a table needs about four paid requests."""
        return 10.0 if cloud_of(self.path) else 0.0

    @property
    def confirms_after_s(self) -> float:
        """Delta's jar for Spark may overwrite commits in S3, because it checks for a name and then
        writes."""
        return 60.0 if cloud_of(self.path) == "s3" else 0.0

    def is_overwritten(self, namespace: str, name: str, version: int) -> bool:
        from pgsluice.sinks.delta.log.reading import has_lost_commit

        return has_lost_commit(self._sink().folder(namespace, name), version)

    @property
    def target(self) -> str:
        """The location of the tables."""
        return self.path

    def reading_options(self) -> dict[str, str]:
        """The store's options, with references to the environment resolved."""
        return self._sink().folder("schema", "table").storage_options()

    def table_names(self) -> tuple[str, ...]:
        """The tables in the settings by table."""
        by_table = (self.merge_tables, self.partition_by, self.cluster_by, self.table_properties)
        return tuple(dict.fromkeys(chain.from_iterable(by_table)))

    def column_names(self) -> tuple[tuple[str, str], ...]:
        """The columns in ``partition_by`` and ``cluster_by``."""
        terms = [
            (t, Term.parse(text).column) for t, texts in self.partition_by.items() for text in texts
        ]
        return (*terms, *((t, name) for t, names in self.cluster_by.items() for name in names))

    def check_table(self, title: str, schema: Any) -> None:
        """Refuse columns by which the table cannot be partitioned or sorted."""
        try:
            from pgsluice.sinks.delta.log.columns import as_delta

            layout = self._sink().layout(title)
        except ModuleNotFoundError:  # another check says so
            return
        layout.check(as_delta(schema, title), title)

    def with_names(self, names: TargetNames) -> DeltaSinkConfig:
        """With the names of partitions and of the order of rows at the target."""

        def at_target(title: str, texts: Columns) -> Columns:
            given = names.columns(title)
            terms = map(Term.parse, texts)
            return tuple(
                str(replace(term, column=given.get(term.column, term.column))) for term in terms
            )

        if not names.rename:
            return self
        return self.model_copy(
            update={
                key: {title: at_target(title, texts) for title, texts in tables.items()}
                for key, tables in (
                    ("partition_by", self.partition_by),
                    ("cluster_by", self.cluster_by),
                )
            }
        )

    def location(self, namespace: str, name: str) -> str:
        """The table's folder or URL."""
        return self._sink().location(namespace, name)

    def catalog_table(self, namespace: str, name: str) -> CatalogTable | None:
        """The table's name by ``register``."""
        if self.register_as is None:
            return None
        parts = catalog_name(self.register_as, namespace, name)
        return CatalogTable(parts, "delta", self.location(namespace, name))

    def lacking_for_catalog(
        self, spark: Mapping[str, str], version: str | None
    ) -> Iterable[tuple[str, str]]:
        """Missing settings of Delta's jar, and a warning if the catalog is only in memory."""
        if self.register_as is None:
            return ()
        return lacking_settings(self.register_as, spark, version)

    def why_unreachable(self) -> str | None:
        """Why the tables cannot be in the object store, or in the folder."""
        from pgsluice.stores.probe import why_unfit

        return why_unfit(self.path, self.storage_options)

    def advice(self, namespace: str, name: str, merge_s: float, title: str) -> str | None:
        """The gain of merging on read, for a table with long merges."""
        if merge_s < SLOW_MERGE_S or "://" in self.path:  # in a store, to ask costs requests
            return None
        try:
            from pgsluice.sinks.delta.advice import advice_on_merges

            folder = self._sink().folder(namespace, name)
        except ModuleNotFoundError:
            return None
        return advice_on_merges(title, folder, SLOW_MERGE_S)

    def make(self, *, foreign_writes: str, cut_retention_s: float) -> Sink:
        """The sink that writes natively.

        Raises:
            ConfigError: deltalake is not installed.
        """
        try:
            return replace(
                self._sink(),
                foreign_writes=cast(Literal["park", "allow"], foreign_writes),
                cut_retention_s=cut_retention_s,
            )
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the Delta sink needs the Python package {error.name}, which is not installed",
                hint="pip install 'pgsluice[delta]'",
            ) from error

    def _sink(self) -> DeltaSink:
        from pgsluice.sinks.delta.sink import DeltaSink

        return DeltaSink(
            self.path,
            history_retention_s=self.history_retention,
            merge=self.merge,
            merge_tables=self.merge_tables,
            partition_by=self.partition_by,
            cluster_by=self.cluster_by,
            table_properties=self.table_properties,
            cache_dir=self.cache_dir,
            storage_options=self.storage_options,
        )
