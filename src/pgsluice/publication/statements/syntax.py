"""The syntax of publication statements, before any name is looked up.

``position`` is the one that the server's parser reports, in characters from 0.

Source: src/include/nodes/parsenodes.h (CreatePublicationStmt and its neighbours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class RelationName:
    """``t``, ``s.t`` or ``database.s.t``; ``only``: without what inherits from it."""

    name: str
    namespace: str | None = None
    database: str | None = None
    only: bool = False


@dataclass(frozen=True, slots=True)
class WhereClause:
    """The text between the parentheses of ``WHERE ( … )``, and its position in the statement."""

    text: str
    position: int


@dataclass(frozen=True, slots=True)
class TableObject:
    """``TABLE [ONLY] t [(columns)] [WHERE (…)]``; no column list: None."""

    relation: RelationName
    columns: tuple[str, ...] | None = None
    where: WhereClause | None = None


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """``TABLES IN SCHEMA s``; None: CURRENT_SCHEMA."""

    name: str | None


PublicationObject: TypeAlias = TableObject | SchemaObject


@dataclass(frozen=True, slots=True)
class Parameter:
    """``name [= value]`` of WITH or SET; ``value`` None: none was given."""

    name: str
    value: str | None
    position: int


@dataclass(frozen=True, slots=True)
class CreatePublication:
    """``CREATE PUBLICATION``."""

    name: str
    all_tables: bool = False
    objects: tuple[PublicationObject, ...] = ()
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterObjects:
    """``ALTER PUBLICATION name ADD | SET | DROP objects``; ``change`` is the word in lower case."""

    name: str
    change: str
    objects: tuple[PublicationObject, ...]


@dataclass(frozen=True, slots=True)
class AlterParameters:
    """``ALTER PUBLICATION name SET (…)``; ``OWNER TO`` sets none, since ours have one owner."""

    name: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class RenamePublication:
    """``ALTER PUBLICATION name RENAME TO new_name``."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropPublications:
    """``DROP PUBLICATION [IF EXISTS] a, b [CASCADE | RESTRICT]``."""

    names: tuple[str, ...]
    if_exists: bool = False


Statement: TypeAlias = (
    CreatePublication | AlterObjects | AlterParameters | RenamePublication | DropPublications
)
