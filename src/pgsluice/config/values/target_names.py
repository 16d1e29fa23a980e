"""The names of schemas, tables and columns at the target, where ``rename`` gives them others.

The source's names identify everything else: other settings, commands, records and messages. So the
names at the target are looked up in two places only: where a sink opens a table
(:mod:`pgsluice.sinks.renamed`), and where a target is located.

A name that ``rename`` gives away belongs to its entry, even while the source has nothing of the
entry's name. So a target's column always has the values of the same column of the source, and no
rule about changed definitions has to know the names at the target.

A target may also have a name in the catalog of Spark's session, from a template such as
``{schema}.{table}``. The template has two parts (schema and table) or three (catalog, schema and
table), with a dot between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_FIELD = re.compile(r"\{(schema|table)\}")
_PARTS = (2, 3)


@dataclass(frozen=True, slots=True)
class TargetNames:
    """The names at the target.

    Attributes:
        rename: ``schema``, ``schema.table`` or ``schema.table.column`` -> the name that takes the
            place of its last part.
    """

    rename: Mapping[str, str] = field(default_factory=dict)

    def table(self, namespace: str, name: str) -> tuple[str, str]:
        """A table's schema and name at the target."""
        at_target = self.rename.get(f"{namespace}.{name}", name)
        return self.rename.get(namespace, namespace), at_target

    def columns(self, title: str) -> Mapping[str, str]:
        """The renamed columns of a table, as source -> target.

        Args:
            title: the table's ``schema.table`` at the source.
        """
        if not self.rename:
            return MappingProxyType({})
        prefix = f"{title}."
        return {
            name.removeprefix(prefix): given
            for name, given in self.rename.items()
            if name.startswith(prefix)
        }

    def described(self, namespace: str, name: str) -> str:
        """The entries about a table, its schema and its columns; empty: there are none.

        A table that is renamed at the source has other ones only if they name it.
        """
        title = f"{namespace}.{name}"
        entries = [self.rename.get(namespace), self.rename.get(title)]
        columns = sorted(self.columns(title).items())
        return json.dumps([entries, columns]) if any(entries) or columns else ""

    def owner_of_table_name(self, namespace: str, name: str) -> str | None:
        """The entry to which a table's schema or name at the target belongs; None: to no other
        one."""
        schema, table = (each.casefold() for each in self.table(namespace, name))
        for entry, given in self.rename.items():
            above, _, _ = entry.rpartition(".")
            is_of_schema = not above and entry != namespace and given.casefold() == schema
            is_of_table = above == namespace and entry != f"{namespace}.{name}"
            if is_of_schema or (is_of_table and given.casefold() == table):
                return entry
        return None


def why_no_names(rename: Mapping[str, str]) -> str | None:
    """Why names at the target are wrong, as the rest of a sentence about the key; None: they are
    not."""
    given_to: dict[tuple[str, str], str] = {}
    for entry, given in rename.items():
        if not all(entry.split(".")):
            return f'needs names such as "public.orders" or "public.orders.total", not "{entry}"'
        is_plain = given.isprintable() and given == given.strip() and not {*given} & {*'."`/\\'}
        if not is_plain or not 1 <= len(given.encode()) <= 63:
            return (
                f'gives "{entry}" the name {json.dumps(given)}: it has to be the new name alone, '
                "of 1 to 63 bytes, without a schema or table, and without dots, slashes, quotes "
                "and blanks around it"
            )
        place = entry.rpartition(".")[0], given.casefold()
        if (other := given_to.setdefault(place, entry)) != entry:
            return f'gives "{other}" and "{entry}" the same name "{given}"'
    return None


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
        """The table's name in the catalog, quoted for a statement of Spark SQL."""
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
