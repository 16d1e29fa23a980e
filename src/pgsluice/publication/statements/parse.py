"""Parse publication statements: the grammar of PostgreSQL 18, by recursive descent.

A text has any number of statements, separated by semicolons, with all of the server's kinds of
comments, quoted names and strings. Syntax errors have the server's message and position. There are
two differences to PostgreSQL 18: ``FOR ALL TABLES IN SCHEMA s``, from an early draft of its
documentation, is accepted as ``FOR TABLES IN SCHEMA s``; and other statements than those about
publications are refused by name.

Source: src/backend/parser/gram.y (CreatePublicationStmt, AlterPublicationStmt, DropStmt,
PublicationObjSpec, preprocess_pubobj_list).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.publication.statements.filters import check_syntax
from pgsluice.publication.statements.syntax import (
    AlterObjects,
    AlterParameters,
    CreatePublication,
    DropPublications,
    Parameter,
    PublicationObject,
    RelationName,
    RenamePublication,
    SchemaObject,
    Statement,
    TableObject,
    WhereClause,
)
from pgsluice.sql import SqlRefused, Token, TokenCursor, TokenKind, tokenize

_VERBS = ("create", "alter", "drop")


@dataclass(frozen=True, slots=True)
class _Written:
    """One object as it was written.

    Attributes:
        kind: what its keyword says; None: it is of the same kind as the object before it, as ``b``
            and ``t`` in ``TABLE a, b, TABLES IN SCHEMA s, t``.
        relation: its name; None: CURRENT_SCHEMA.
        is_bare: it is a single name and nothing else, so it may also name a schema.
    """

    kind: type[PublicationObject] | None
    relation: RelationName | None
    columns: tuple[str, ...] | None
    where: WhereClause | None
    is_bare: bool
    position: int


def parse_statements(text: str) -> list[tuple[Statement, int]]:
    """Parse all statements of a text, each with the place of its first character.

    Raises:
        SqlRefused: PostgreSQL's parser refuses it, with this message at this position.
    """
    try:
        return _Parser(tokenize(text), text).statements()
    except SqlRefused as error:
        raise error.located_in(text) from None


class _Parser(TokenCursor):
    def statements(self) -> list[tuple[Statement, int]]:
        statements: list[tuple[Statement, int]] = []
        while True:
            while self.accept(";"):
                pass
            if self.is_at_end():
                return statements
            start = self.token.start
            statement = self._statement()
            if not self.is_at_end() and not self.token.is_punctuation(";"):
                raise self.error()
            statements.append((statement, start))

    def _statement(self) -> Statement:
        verb = self.token
        if verb.is_keyword(*_VERBS) and self.ahead().is_keyword("publication"):
            self.index += 2
            match verb.value:
                case "create":
                    return self._create()
                case "alter":
                    return self._alter()
                case _:
                    return self._drop()
        if verb.keyword:
            raise SqlRefused("only CREATE, ALTER and DROP PUBLICATION can stand here", verb.start)
        raise self.error()

    def _create(self) -> CreatePublication:
        name = self.column_id()
        all_tables = False
        objects: tuple[PublicationObject, ...] = ()
        if self.accept_keyword("for"):
            # FOR ALL TABLES IN SCHEMA is a list of objects.
            if self.token.is_keyword("all") and not self.ahead(2).is_keyword("in"):
                self.take()
                self.expect_keyword("tables")
                all_tables = True
            else:
                objects = self.objects()
        parameters = self._definition() if self.accept_keyword("with") else ()
        return CreatePublication(name, all_tables, objects, parameters)

    def _alter(self) -> Statement:
        name = self.column_id()
        if self.accept_keyword("rename"):
            self.expect_keyword("to")
            return RenamePublication(name, self.column_id())
        if self.accept_keyword("owner"):
            self.expect_keyword("to")
            self._role()
            return AlterParameters(name, ())
        change = self.expect_keyword("add", "drop", "set").value
        if change == "set" and self.token.is_punctuation("("):
            return AlterParameters(name, self._definition())
        return AlterObjects(name, change, self.objects())

    def _drop(self) -> DropPublications:
        if_exists = False
        if self.token.is_keyword("if") and self.ahead().is_keyword("exists"):
            self.index += 2
            if_exists = True
        names = self.listed(self.column_id)
        self.accept_keyword("cascade", "restrict")
        return DropPublications(names, if_exists)

    def _role(self) -> None:
        is_role = self.token.keyword in ("", "U", "C", "T") or self.token.is_keyword(
            "current_role", "current_user", "session_user"
        )
        if self.token.kind is not TokenKind.NAME or not is_role:
            raise self.error()
        self.take()

    # -- parameters

    def _definition(self) -> tuple[Parameter, ...]:
        self.expect("(")
        parameters = self.listed(self._parameter)
        self.expect(")")
        return parameters

    def _parameter(self) -> Parameter:
        name = self.token
        if name.kind is not TokenKind.NAME:
            raise self.error()
        self.take()
        value = self._value() if self.accept_operator("=") else None
        return Parameter(name.value, value, name.start)

    def _value(self) -> str:
        """The text of a word, a string, a number or an operator."""
        sign = ""
        if self.token.is_operator("+", "-"):
            sign = self.take().value.replace("+", "")
            if self.token.kind not in (TokenKind.INTEGER, TokenKind.NUMBER):
                raise self.error()
        if self.token.kind not in (
            TokenKind.NAME,
            TokenKind.STRING,
            TokenKind.INTEGER,
            TokenKind.NUMBER,
            TokenKind.OPERATOR,
        ):
            raise self.error()
        value = sign + self.take().value
        while self.token.is_punctuation(".") and not sign:
            self.take()
            value += "." + self.label()
        return value

    # -- lists of objects

    def objects(self) -> tuple[PublicationObject, ...]:
        """Read ``pub_obj_list``; as on the server, kinds are assigned after the whole list."""
        return _with_kinds(self.listed(self._object))

    def _object(self) -> _Written:
        token = self.token
        if self.accept_keyword("table"):
            return self._table(TableObject, token)
        all_words = 1 if token.is_keyword("all") else 0
        words = [self.ahead(n) for n in range(all_words, all_words + 3)]
        if words[0].is_keyword("tables") and words[1].is_keyword("in"):
            self.index += all_words + 2
            self.expect_keyword("schema")
            return self._schema(token)
        if self.accept_keyword("current_schema"):
            return _Written(None, None, None, None, False, token.start)
        return self._table(None, token)

    def _schema(self, first: Token) -> _Written:
        if self.accept_keyword("current_schema"):
            return _Written(SchemaObject, None, None, None, False, first.start)
        name = RelationName(self.column_id())
        return _Written(SchemaObject, name, None, None, True, first.start)

    def _table(self, kind: type[PublicationObject] | None, first: Token) -> _Written:
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
        columns = self.listed(self.column_id)
        self.expect(")")
        return columns

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
    cursor = _Parser(tokenize(text), text)
    try:
        name = cursor.qualified_name()
        if not cursor.is_at_end():
            raise cursor.error()
    except SqlRefused as error:
        raise error.located_in(text) from None
    return name


def _with_kinds(written: tuple[_Written, ...]) -> tuple[PublicationObject, ...]:
    """Give each object its kind."""
    kind = written[0].kind
    if kind is None:
        raise SqlRefused(
            "invalid publication object list",
            written[0].position,
            detail="One of TABLE or TABLES IN SCHEMA must be specified before a standalone table "
            "or schema name.",
        )
    objects: list[PublicationObject] = []
    for item in written:
        kind = item.kind or kind
        objects.append(_table(item) if kind is TableObject else _schema(item))
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
