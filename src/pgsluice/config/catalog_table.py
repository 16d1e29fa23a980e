"""A target's name in the catalog of Spark's session, from a template such as ``{schema}.{table}``.

The template has two parts (schema and table) or three (catalog, schema and table), with a dot
between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELD = re.compile(r"\{(schema|table)\}")
_PARTS = (2, 3)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as a catalog has it.

    Attributes:
        name: its schema and its name, perhaps after a catalog.
        provider: the format, as ``USING`` names it.
        location: where it lies.
    """

    name: tuple[str, ...]
    provider: str
    location: str

    @property
    def sql_name(self) -> str:
        """The name for a statement."""
        return ".".join(_quoted(part) for part in self.name)

    @property
    def sql_schema(self) -> str:
        """The schema for a statement, perhaps after a catalog."""
        return ".".join(_quoted(part) for part in self.name[:-1])


def why_no_catalog_name(template: str) -> str | None:
    """Why a template makes no names; it continues a sentence about its key. None: it does."""
    parts = template.split(".")
    bare = _FIELD.sub("", template)
    if len(parts) not in _PARTS or not all(part.strip() for part in parts) or "{" in bare:
        return 'has to be "schema.table" or "catalog.schema.table", with {schema} and {table}'
    if "{table}" not in parts[-1]:
        return "needs {table} in its last part, or all tables would have one name"
    return None


def catalog_name(template: str, namespace: str, name: str) -> tuple[str, ...]:
    """The parts of a table's name; dots in names of the source make no parts.

    Args:
        namespace, name: the target's.
    """
    values = {"schema": namespace, "table": name}
    return tuple(_FIELD.sub(lambda field: values[field[1]], part) for part in template.split("."))


def _quoted(part: str) -> str:
    return "`" + part.replace("`", "``") + "`"
