"""Reads the TOML file into a :class:`~pgsluice.config.model.Config`, or reports all its errors."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pgsluice.config.model import (
    Config,
    PublicationsConfig,
    SourceConfig,
    SpoolConfig,
    SubscriptionConfig,
)
from pgsluice.config.monitor import MonitorConfig
from pgsluice.config.section import Section
from pgsluice.config.validation_errors import nearest, sentences
from pgsluice.config.values.path_words import are_entangled
from pgsluice.errors import ConfigError

_SECTIONS = ("source", "spool", "publications", "subscription", "spark", "monitor")
_NEEDED = {
    "source": '[source] with dsn = "postgresql://…"',
    "spool": '[spool] with path = "spool"',
}
_S = TypeVar("_S", bound=Section)


def load_config(path: Path | str) -> Config:
    """Read and validate a configuration file.

    Raises:
        ConfigError: the file cannot be read, or has mistakes; the message and the fact
            ``mistakes`` have all of them.
    """
    given, path = path, Path(path).expanduser().absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"the configuration {path} does not exist",
            hint=f"create it with `pgsluice init {shlex.quote(str(given))}`",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"pgsluice cannot read the configuration {path}: {reason}") from error
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Validate a configuration's text; relative paths start from the folder of ``path``.

    Raises:
        ConfigError: as :func:`load_config`.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        raise ConfigError(f"{path.name} is not TOML: {reason[:1].lower()}{reason[1:]}") from error
    except RecursionError:
        raise ConfigError(f"{path.name} has values that are nested too deeply") from None
    except ValueError:  # Python reads integers of up to 4300 digits
        raise ConfigError(f"{path.name} has a number with thousands of digits") from None
    return _Reader(path).read(tree)


class _Reader:
    """Collects errors, and builds the configuration if there are none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[str] = []
        self.missing: list[str] = []

    def read(self, tree: Mapping[str, Any]) -> Config:
        self._check_section_names(tree)
        source = self._section(tree, "source", SourceConfig)
        spool = self._section(tree, "spool", SpoolConfig)
        publications = self._optional(tree, "publications", PublicationsConfig)
        monitor = self._optional(tree, "monitor", MonitorConfig)
        subscriptions = self._subscriptions(tree.get("subscription", ()))
        spark = self._spark(tree.get("spark", {}))
        self._check_names_and_targets(subscriptions)
        if publications is None and "publications" not in tree:
            self._refuse_publications(subscriptions)
        if spool is not None:
            self._check_shared_spool(spool, spark)
        if self.mistakes or source is None or spool is None:
            raise self._error()
        return Config(
            source=source,
            spool=spool,
            publications=publications,
            subscription=tuple(subscriptions),
            spark=spark,
            monitor=monitor or MonitorConfig(),
            path=self.path,
        )

    def _error(self) -> ConfigError:
        mistakes, file = tuple(self.mistakes), self.path.name
        if self.missing:
            section = " and ".join(f"[{name}]" for name in self.missing)
            lines = " and ".join(_NEEDED[name] for name in self.missing)
            error = ConfigError(
                f"{file}: the section {section} is missing",
                hint=f"add {lines}; `pgsluice init` writes a configuration with comments",
                mistakes=mistakes,
            )
        else:
            error = ConfigError(f"{file}: {mistakes[0]}", mistakes=mistakes)
        if len(mistakes) == 1:
            return error
        what = f"{file} has {len(mistakes)} mistakes:"
        return ConfigError(what, details=mistakes, hint=error.hint, mistakes=mistakes)

    def _check_section_names(self, tree: Mapping[str, Any]) -> None:
        for name in tree:
            if name in _SECTIONS:
                continue
            known = nearest(name, _SECTIONS)
            heading = "[[subscription]]" if known == "subscription" else f"[{known}]"
            hint = f"; did you mean {heading}?" if known else ""
            is_section = isinstance(tree[name], dict | list)
            shown = f"section [{name}]" if is_section else f'key "{name}"'
            self.mistakes.append(f"unknown {shown}{hint}")

    def _section(self, tree: Mapping[str, Any], name: str, model: type[_S]) -> _S | None:
        raw = tree.get(name)
        if raw is None:
            self.mistakes.append(f"the section [{name}] is missing")
            self.missing.append(name)
            return None
        return self._validated(raw, model, f"[{name}]")

    def _optional(self, tree: Mapping[str, Any], name: str, model: type[_S]) -> _S | None:
        return self._section(tree, name, model) if name in tree else None

    def _validated(self, raw: Any, model: type[_S], place: str) -> _S | None:
        if not isinstance(raw, dict):
            self.mistakes.append(f"{place} has to be a section with keys below it")
            return None
        try:
            return model.model_validate(
                _tuples(raw), context={"base_dir": self.path.parent}, by_name=False, by_alias=True
            )
        except ValidationError as error:
            self.mistakes += sentences(error, model, place)
            return None

    def _subscriptions(self, raw: Any) -> list[SubscriptionConfig]:
        if not isinstance(raw, list | tuple):
            self.mistakes.append("write each subscription as [[subscription]], in double brackets")
            return []
        subscriptions = []
        for number, table in enumerate(raw, start=1):
            name = table.get("name") if isinstance(table, dict) else None
            shown = f'"{name}"' if isinstance(name, str) else f"number {number}"
            section = self._validated(table, SubscriptionConfig, f"[subscription] {shown}")
            if section is not None:
                subscriptions.append(section)
        return subscriptions

    def _spark(self, raw: Any) -> dict[str, str]:
        if not isinstance(raw, dict):
            self.mistakes.append("[spark] has to be a section with Spark's settings below it")
            return {}
        settings: dict[str, str] = {}
        self._flatten(raw, "", settings)
        return settings

    def _flatten(self, raw: Mapping[str, Any], prefix: str, into: dict[str, str]) -> None:
        """Join nested names: TOML reads an unquoted ``spark.master`` as a table in a table."""
        for key, value in raw.items():
            match value:
                case dict():
                    self._flatten(value, f"{prefix}{key}.", into)
                case bool():
                    into[prefix + key] = str(value).lower()
                case str() | int() | float():
                    into[prefix + key] = str(value)
                case _:
                    self.mistakes.append(
                        f'[spark]: "{prefix}{key}" has to be text, a number, true or false'
                    )

    def _refuse_publications(self, subscriptions: list[SubscriptionConfig]) -> None:
        self.mistakes += (
            f'[subscription] "{subscription.name}": "publications" names publications of the '
            "section [publications], which is missing; the server's belong in [source]"
            for subscription in subscriptions
            if subscription.publications is not None
        )

    def _check_names_and_targets(self, subscriptions: list[SubscriptionConfig]) -> None:
        names: dict[str, str] = {}
        targets: dict[str, str] = {}
        rejects: dict[str, str] = {}
        for subscription in subscriptions:
            name, target = subscription.name, subscription.sink.target
            # Names become folders, and some file systems ignore case.
            if (first := names.setdefault(name.lower(), name)) is not name:
                self.mistakes.append(f'two subscriptions are named "{first}"')
                continue
            for other, first in targets.items():
                if other == target or are_entangled(other, target):
                    self.mistakes.append(
                        f'[subscription] "{name}" writes to the same target as "{first}"'
                        f"{', or into its folders' * (other != target)}; each needs its own target"
                    )
                    break
            targets.setdefault(target, name)
            table = subscription.rejects
            if table is not None and (first := rejects.setdefault(table, name)) != name:
                self.mistakes.append(
                    f'[subscription] "{name}" has the same "rejects" as "{first}"; each needs its '
                    "own table"
                )

    def _check_shared_spool(self, spool: SpoolConfig, spark: Mapping[str, str]) -> None:
        for key in ("spark.master", "spark.remote"):
            master = spark.get(key, "local")
            if not master.startswith("local") and not (spool.shared or spool.place.is_remote):
                self.mistakes.append(
                    f'[spool]: executors of "{key}" = "{master}" cannot see a folder of this '
                    "machine; set shared = true if it is mounted at the same path on all of them, "
                    "or have the spool in an object store"
                )


def _tuples(value: Any) -> Any:
    """Convert lists to tuples at every depth, for frozen models."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
