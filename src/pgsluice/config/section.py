"""The base class of all sections, and values that depend on the file's folder."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from pgsluice.config.values.path_words import URL, why_no_folders
from pgsluice.config.values.quantities import parse_duration, parse_size


class Section(BaseModel):
    """The base class of all sections: frozen, strict, no unknown keys, no values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, populate_by_name=True
    )


def base_folder(info: ValidationInfo) -> Path:
    """The folder for relative paths: the file's folder, or the current one."""
    base = (info.context or {}).get("base_dir")
    return base if isinstance(base, Path) else Path.cwd()


def home_expanded(value: str) -> Path:
    """The path with ``~`` replaced.

    Raises:
        ValueError: it names a user that this machine does not know.
    """
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        home = value.partition("/")[0]
        why = f"begins with {home}, and this machine knows no such user: write the whole path"
        raise ValueError(why) from error


def target_template(value: str) -> str:
    """Validate a path or name that contains {table}, and maybe {schema}."""
    try:
        fields = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
    except ValueError as error:
        raise ValueError("has a single { or }; only {schema} and {table} are allowed") from error
    if unknown := sorted(fields - {"schema", "table"}):
        raise ValueError(f"may contain {{schema}} and {{table}}, not {{{unknown[0]}}}")
    if "table" not in fields:
        raise ValueError("has to contain {table}, else all tables would share one target")
    return value


def _target_path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    target_template(value)
    if URL.match(value):
        return value
    if why := why_no_folders(value):
        raise ValueError(why)
    path = home_expanded(value)
    if not path.is_absolute() and {"{", "}"} & set(str(base_folder(info))):
        raise ValueError("is relative to a folder with { or } in its name; write an absolute path")
    return str((base_folder(info) / path).absolute())


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _duration(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _option_text(value: Any) -> Any:
    """A value as deltalake takes it: text, also where TOML has true or a number."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


StoreOptions = dict[str, Annotated[str, BeforeValidator(_option_text)]]
"""Options of an object store, under deltalake's names; some are secret."""

Size = Annotated[int, BeforeValidator(_size), Field(le=2**62)]
Seconds = Annotated[float, BeforeValidator(_duration), Field(le=10**9)]
"""A duration: a number of seconds, or text such as ``10m``."""

TargetPath = Annotated[str, BeforeValidator(_target_path)]
"""The location of tables: a folder or URL that contains {table}, and maybe {schema}."""
