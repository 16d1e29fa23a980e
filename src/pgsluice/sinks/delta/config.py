"""``sink = { type = "delta", … }``; reading it needs neither deltalake nor Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import AfterValidator, Field

from pgsluice.config import Seconds, SinkConfig, TargetPath
from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Sink


def _is_native(engine: str) -> str:
    if engine == "spark":
        raise ValueError('= "spark": only "native" (and "auto") is supported yet')
    return engine


class DeltaSinkConfig(SinkConfig):
    """Delta tables under one path.

    Attributes:
        path: a folder or URL with ``{table}`` and perhaps ``{schema}``.
        engine: what writes the tables.
        history_retention: seconds that readers may go back; 0: only to the versions of cuts.
    """

    type: Literal["delta"] = "delta"
    path: TargetPath
    engine: Annotated[Literal["auto", "native", "spark"], AfterValidator(_is_native)] = "auto"
    history_retention: Seconds = Field(default=0.0, ge=0)

    @property
    def target(self) -> str:
        """Where the tables lie."""
        return self.path

    def why_unreachable(self) -> str | None:
        """Why the object store does not answer; None for a folder."""
        if "://" not in self.path:
            return None
        try:
            from pgsluice.sinks.delta.reach import why_unreachable
        except ModuleNotFoundError:
            return None  # what is not installed is another check
        return why_unreachable(self.path)

    def make(self, *, foreign_writes: str, cut_retention_s: float) -> Sink:
        """The sink that writes natively.

        Raises:
            ConfigError: deltalake is not installed.
        """
        try:
            from pgsluice.sinks.delta.sink import DeltaSink
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the Delta sink needs a package that is not installed: {error.name}",
                hint="pip install 'pgsluice[delta]'",
            ) from error
        return DeltaSink(
            self.path,
            cast(Literal["park", "allow"], foreign_writes),
            cut_retention_s,
            self.history_retention,
        )
