"""The lists of objects in publication statements: tables with columns and filters, and schemas.

An object without a keyword (``b`` and ``t`` in ``TABLE a, b, TABLES IN SCHEMA s, t``) is of the
same kind as the object before it. As in the server, kinds are assigned after the whole list is
read.

Source: src/backend/parser/gram.y (PublicationObjSpec, preprocess_pubobj_list).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgsluice.publication.statements.filters import check_syntax
from pgsluice.publication.statements.syntax import (
    PublicationObject,
    RelationName,
    SchemaObject,
    TableObject,
    WhereClause,
)
from pgsluice.sql import SqlRefused, Token, TokenCursor, tokenize


class _Kind(Enum):
    TABLE = "table"
    SCHEMA = "schema"
    CONTINUATION = "continuation"


@dataclass(frozen=True, slots=True)
class _Written:
    """One object as it was written.

    Attributes:
        relation: its name; None: CURRENT_SCHEMA.
        is_bare: it is a single name and nothing else, so it may also name a schema.
    """

    kind: _Kind
    relation: RelationName | None
    columns: tuple[str, ...] | None
    where: WhereClause | None
    is_bare: bool
    position: int


class ObjectListParser(TokenCursor):
    """Reads ``pub_obj_list``."""

    def objects(self) -> tuple[PublicationObject, ...]:
        """Read one object or more."""
        written = [self._object()]
        while self.accept(","):
            written.append(self._object())
        return _with_kinds(written)

    def _object(self) -> _Written:
        token = self.token
        if self.accept_keyword("table"):
            return self._table(_Kind.TABLE, token)
        all_words = 1 if token.is_keyword("all") else 0
        words = [self.ahead(n) for n in range(all_words, all_words + 3)]
        if words[0].is_keyword("tables") and words[1].is_keyword("in"):
            self.index += all_words + 2
            self.expect_keyword("schema")
            return self._schema(token)
        if self.accept_keyword("current_schema"):
            return _Written(_Kind.CONTINUATION, None, None, None, False, token.start)
        return self._table(_Kind.CONTINUATION, token)

    def _schema(self, first: Token) -> _Written:
        if self.accept_keyword("current_schema"):
            return _Written(_Kind.SCHEMA, None, None, None, False, first.start)
        name = RelationName(self.column_id())
        return _Written(_Kind.SCHEMA, name, None, None, True, first.start)

    def _table(self, kind: _Kind, first: Token) -> _Written:
        start = self.index
        relation = self._relation()
        is_name = self.index == start + 1
        columns = self._columns() if self.token.is_punctuation("(") else None
        where = self._where() if self.accept_keyword("where") else None
        is_bare = is_name and columns is None and where is None
        return _Written(kind, relation, columns, where, is_bare, first.start)

    def _relation(self) -> RelationName:
        if self.accept_keyword("only"):
            if self.accept("("):
                relation = self.qualified_name(only=True)
                self.expect(")")
                return relation
            return self.qualified_name(only=True)
        relation = self.qualified_name()
        self.accept_operator("*")
        return relation

    def qualified_name(self, *, only: bool = False) -> RelationName:
        """``t``, ``s.t`` or ``database.s.t``."""
        start = self.token.start
        names = [self.column_id()]
        while self.accept("."):
            if self.accept_operator("*"):
                raise self.error()
            names.append(self.label())
        if len(names) > 3:
            raise SqlRefused(
                f"improper qualified name (too many dotted names): {'.'.join(names)}", start
            )
        name, namespace, database = [*reversed(names), None, None][:3]
        assert name is not None
        return RelationName(name, namespace, database, only)

    def _columns(self) -> tuple[str, ...]:
        self.expect("(")
        columns = [self.column_id()]
        while self.accept(","):
            columns.append(self.column_id())
        self.expect(")")
        return tuple(columns)

    def _where(self) -> WhereClause:
        self.expect("(")
        first = self.token.start
        depth = 1
        while depth and not self.is_at_end() and not self.token.is_punctuation(";"):
            token = self.take()
            if token.is_punctuation("(") or token.is_punctuation("["):
                depth += 1
            elif token.is_punctuation(")") or token.is_punctuation("]"):
                depth -= 1
        is_closed = depth == 0
        end = self.tokens[self.index - 1].start if is_closed else self.token.start
        where = WhereClause(self.text[first:end], first)
        try:
            check_syntax(where)
        except SqlRefused as error:
            is_at_end = error.position == first + len(where.text.rstrip())
            if is_closed or not is_at_end:
                raise
        if not is_closed:
            raise self.error()
        return where


def read_relation_name(text: str) -> RelationName:
    """Parse a table's name on its own: ``t``, ``s.t``, ``"S".t``.

    Raises:
        SqlRefused: the text is not such a name.
    """
    cursor = ObjectListParser(tokenize(text), text)
    try:
        name = cursor.qualified_name()
        if not cursor.is_at_end():
            raise cursor.error()
    except SqlRefused as error:
        raise error.located_in(text) from None
    return name


def _with_kinds(written: list[_Written]) -> tuple[PublicationObject, ...]:
    """Give each object its kind."""
    if written[0].kind is _Kind.CONTINUATION:
        raise SqlRefused(
            "invalid publication object list",
            written[0].position,
            detail="One of TABLE or TABLES IN SCHEMA must be specified before a standalone table "
            "or schema name.",
        )
    objects: list[PublicationObject] = []
    kind = written[0].kind
    for item in written:
        kind = item.kind if item.kind is not _Kind.CONTINUATION else kind
        objects.append(_table(item) if kind is _Kind.TABLE else _schema(item))
    return tuple(objects)


def _table(item: _Written) -> TableObject:
    if item.relation is None:
        raise SqlRefused("invalid table name", item.position)
    return TableObject(item.relation, item.columns, item.where)


def _schema(item: _Written) -> SchemaObject:
    if item.where is not None:
        raise SqlRefused("WHERE clause not allowed for schema", item.position)
    if item.columns is not None:
        raise SqlRefused("column specification not allowed for schema", item.position)
    if item.relation is None:
        return SchemaObject(None)
    if not item.is_bare:
        raise SqlRefused("invalid schema name", item.position)
    return SchemaObject(item.relation.name)
