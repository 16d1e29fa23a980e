"""Parse publication statements: the grammar of PostgreSQL 18, by recursive descent.

A text has any number of statements, separated by semicolons, with all of the server's kinds of
comments, quoted names and strings. Syntax errors have the server's message and position. There are
two differences to PostgreSQL 18: ``FOR ALL TABLES IN SCHEMA s``, from an early draft of its
documentation, is accepted as ``FOR TABLES IN SCHEMA s``; and other statements than those about
publications are refused by name.

Source: src/backend/parser/gram.y (CreatePublicationStmt, AlterPublicationStmt, DropStmt).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.publication.statements.object_list import ObjectListParser
from pgsluice.publication.statements.syntax import (
    AlterObjects,
    AlterParameters,
    Change,
    ChangeOwner,
    CreatePublication,
    DropPublications,
    Parameter,
    PublicationObject,
    RenamePublication,
    Statement,
)
from pgsluice.sql import SqlRefused, TokenKind, tokenize

_VERBS = ("create", "alter", "drop")


@dataclass(frozen=True, slots=True)
class Located:
    """A statement, and the place of its first character in the text."""

    statement: Statement
    start: int


def parse_statements(text: str) -> list[Located]:
    """Parse all statements of a text.

    Raises:
        SqlRefused: PostgreSQL's parser refuses it, with this message at this position.
    """
    try:
        return _Parser(tokenize(text), text).statements()
    except SqlRefused as error:
        raise error.located_in(text) from None


class _Parser(ObjectListParser):
    """Parses statements and their parameters; the base class parses the lists of objects."""

    def statements(self) -> list[Located]:
        statements: list[Located] = []
        while True:
            while self.accept(";"):
                pass
            if self.is_at_end():
                return statements
            start = self.token.start
            statement = self._statement()
            if not self.is_at_end() and not self.token.is_punctuation(";"):
                raise self.error()
            statements.append(Located(statement, start))

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
            return ChangeOwner(name)
        if self.accept_keyword("add"):
            return AlterObjects(name, Change.ADD, self.objects())
        if self.accept_keyword("drop"):
            return AlterObjects(name, Change.DROP, self.objects())
        self.expect_keyword("set")
        if self.token.is_punctuation("("):
            return AlterParameters(name, self._definition())
        return AlterObjects(name, Change.SET, self.objects())

    def _drop(self) -> DropPublications:
        if_exists = False
        if self.token.is_keyword("if") and self.ahead().is_keyword("exists"):
            self.index += 2
            if_exists = True
        names = [self.column_id()]
        while self.accept(","):
            names.append(self.column_id())
        if self.token.is_keyword("cascade", "restrict"):
            self.take()
        return DropPublications(tuple(names), if_exists)

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
        parameters = [self._parameter()]
        while self.accept(","):
            parameters.append(self._parameter())
        self.expect(")")
        return tuple(parameters)

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
