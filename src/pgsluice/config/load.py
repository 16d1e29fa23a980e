"""From the TOML file to a :class:`~pgsluice.config.model.Config`.

All mistakes are found before anything is said, and said together: a configuration is put right
in one go. No mistake shows a value that could be a secret.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pgsluice.config.mistakes import nearest, sentences
from pgsluice.config.model import (
    Config,
    PublicationsConfig,
    Section,
    SourceConfig,
    SpoolConfig,
    SubscriptionConfig,
)
from pgsluice.config.not_yet import refusals
from pgsluice.errors import ConfigError

_SECTIONS = ("source", "spool", "publications", "subscription", "spark")
_S = TypeVar("_S", bound=Section)


def load_config(path: Path | str) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: it cannot be read, or something in it is wrong; all mistakes in one
            message, and as the fact ``mistakes``.
    """
    path = Path(path).expanduser().absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no configuration {path}", hint=f"pgsluice init {path.name} writes one"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Check a configuration's text; relative paths start from ``path``'s folder.

    Raises:
        ConfigError: something in it is wrong.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        raise ConfigError(f"{path.name} is not TOML: {reason[:1].lower()}{reason[1:]}") from error
    return _Reader(path).read(tree)


class _Reader:
    """One reading: collects mistakes, makes the configuration when there are none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[str] = []

    def read(self, tree: Mapping[str, Any]) -> Config:
        self._unknown_sections(tree)
        source = self._section(tree, "source", SourceConfig)
        spool = self._section(tree, "spool", SpoolConfig)
        publications = (
            self._section(tree, "publications", PublicationsConfig)
            if "publications" in tree
            else None
        )
        subscriptions = self._subscriptions(tree.get("subscription", ()))
        spark = self._spark(tree.get("spark", {}))
        self._names_and_targets(subscriptions)
        if publications is None and "publications" not in tree:
            self._no_publications(subscriptions)
        if spool is not None:
            self._shared_spool(spool, spark)
        if self.mistakes or source is None or spool is None:
            raise self._error()
        return Config(
            source=source,
            spool=spool,
            publications=publications,
            subscription=tuple(subscriptions),
            spark=spark,
            path=self.path,
        )

    def _error(self) -> ConfigError:
        if len(self.mistakes) == 1:
            what = f"{self.path.name}: {self.mistakes[0]}"
        else:
            lines = "\n".join(f"  {one}" for one in self.mistakes)
            what = f"{self.path.name} has {len(self.mistakes)} mistakes:\n{lines}"
        return ConfigError(what, mistakes=tuple(self.mistakes))

    def _unknown_sections(self, tree: Mapping[str, Any]) -> None:
        for name in tree:
            if name in _SECTIONS:
                continue
            found = nearest(name, _SECTIONS)
            hint = f"; did you mean {_heading(found)}?" if found else ""
            what = "section" if isinstance(tree[name], dict | list) else "key"
            shown = f"[{name}]" if what == "section" else f'"{name}"'
            self.mistakes.append(f"unknown {what} {shown}{hint}")

    def _section(self, tree: Mapping[str, Any], name: str, model: type[_S]) -> _S | None:
        raw = tree.get(name)
        if raw is None:
            self.mistakes.append(f"the section [{name}] is missing")
            return None
        return self._validated(raw, model, f"[{name}]")

    def _validated(self, raw: Any, model: type[_S], place: str) -> _S | None:
        if not isinstance(raw, dict):
            self.mistakes.append(f"{place} has to be a section, with its keys below it")
            return None
        try:
            section = model.model_validate(
                _tuples(raw), context={"base_dir": self.path.parent}, by_name=False, by_alias=True
            )
        except ValidationError as error:
            self.mistakes += sentences(error, model, place)
            return None
        self.mistakes += (f"{place}: {one}" for one in refusals(section))
        if isinstance(section, SubscriptionConfig):
            self.mistakes += (f"{place}, sink: {one}" for one in refusals(section.sink))
        return section

    def _subscriptions(self, raw: Any) -> list[SubscriptionConfig]:
        if not isinstance(raw, list | tuple):
            self.mistakes.append("write [[subscription]], with double brackets, for each of them")
            return []
        found = []
        for number, one in enumerate(raw, start=1):
            name = one.get("name") if isinstance(one, dict) else None
            shown = f'"{name}"' if isinstance(name, str) else f"number {number}"
            section = self._validated(one, SubscriptionConfig, f"[subscription] {shown}")
            if section is not None:
                found.append(section)
        return found

    def _spark(self, raw: Any) -> dict[str, str]:
        if not isinstance(raw, dict):
            self.mistakes.append("[spark] has to be a section, with Spark's settings below it")
            return {}
        settings: dict[str, str] = {}
        self._flatten(raw, "", settings)
        return settings

    def _flatten(self, raw: Mapping[str, Any], prefix: str, into: dict[str, str]) -> None:
        """Without quotes around ``spark.master``, TOML reads tables in tables."""
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
                        f'[spark]: "{prefix}{key}" has to be text, a number, or true or false'
                    )

    def _no_publications(self, subscriptions: list[SubscriptionConfig]) -> None:
        self.mistakes += (
            f'[subscription] "{one.name}": "publications" names pgsluice\'s own, and there is no '
            "section [publications] that makes them; the server's are named in [source]"
            for one in subscriptions
            if one.publications is not None
        )

    def _names_and_targets(self, subscriptions: list[SubscriptionConfig]) -> None:
        names: dict[str, str] = {}
        targets: dict[str, str] = {}
        for one in subscriptions:
            # Folders: equal without case is the same folder on some file systems.
            if (before := names.setdefault(one.name.lower(), one.name)) is not one.name:
                self.mistakes.append(f'two subscriptions are named "{before}"')
            elif (other := targets.setdefault(one.sink.target, one.name)) != one.name:
                self.mistakes.append(
                    f'[subscription] "{one.name}": writes to the same target as "{other}"; '
                    "each needs its own"
                )

    def _shared_spool(self, spool: SpoolConfig, spark: Mapping[str, str]) -> None:
        for key in ("spark.master", "spark.remote"):
            master = spark.get(key, "local")
            if not master.startswith("local") and not spool.shared:
                self.mistakes.append(
                    f'[spool]: executors of "{key}" = "{master}" cannot see a folder of this '
                    "machine; if it is mounted on all of them at the same path, say so with "
                    "shared = true"
                )


def _heading(name: str) -> str:
    return "[[subscription]]" if name == "subscription" else f"[{name}]"


def _tuples(value: Any) -> Any:
    """Lists as tuples, all the way down: what frozen models hold."""
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(one) for one in value)
    return value
