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
    """A table in a catalog.

    Attributes:
        name: its schema and name, optionally with a catalog before them.
        provider: the format, as in ``USING``.
        location: the path of its files.
    """

    name: tuple[str, ...]
    provider: str
    location: str

    @property
    def sql_name(self) -> str:
        """The quoted name for a statement."""
        return ".".join(_quoted(part) for part in self.name)

    @property
    def sql_schema(self) -> str:
        """The quoted schema for a statement, with the catalog if there is one."""
        return ".".join(_quoted(part) for part in self.name[:-1])


def why_no_catalog_name(template: str) -> str | None:
    """Why a template is invalid, as the rest of a sentence about its key; None: it is valid."""
    parts = template.split(".")
    bare = _FIELD.sub("", template)
    if len(parts) not in _PARTS or not all(part.strip() for part in parts) or "{" in bare:
        return 'has to be "schema.table" or "catalog.schema.table", with {schema} and {table}'
    if "{table}" not in parts[-1]:
        return "needs {table} in its last part, or all tables would have one name"
    return None


def catalog_name(template: str, namespace: str, name: str) -> tuple[str, ...]:
    """The parts of a table's name; dots in the source's names do not separate parts.

    Args:
        namespace, name: the target's schema and name.
    """
    values = {"schema": namespace, "table": name}
    return tuple(_FIELD.sub(lambda field: values[field[1]], part) for part in template.split("."))


def _quoted(part: str) -> str:
    return "`" + part.replace("`", "``") + "`"
