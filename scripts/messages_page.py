"""Write docs/messages.md: every message of pgsluice that says what to do, from the code itself.

``python scripts/messages_page.py`` writes the page; tests/docs/test_messages_page.py compares it
with the code. The rows are found in the syntax trees: errors with a ``hint``, findings of
``pgsluice check``, and texts with an arrow.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pgsluice import errors
from pgsluice.errors import PgsluiceError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"
_SOURCE = ROOT / "src"
_ARROW = "\n  → "
_HEAD = """\
# Messages: what they mean and what to do
Search this page for a part of the message. *Words like this* stand for a name or a value.
`CONFIG` stands for the path of your configuration. `pgsluice` prints the first column and, after
`→`, the last one.

Each section has one kind of error: what it means, and the [exit code](exit-codes.md) of a
command that it ends. In a run, an error of one table pauses (*parks*) that table, and all other
tables continue. `scripts/messages_page.py` writes the page from the code.
"""
_DEPTH = 5
_PLACEHOLDER = re.compile(r"\{[a-zA-Z ]*\}")
_FINDINGS = {"error": "error", "warning": "warning"}
_WORDS = {"strerror": "reason", "oid": "OID", "pid": "process id", "uid": "user id"}
"""Attributes of other libraries and abbreviations -> words of a placeholder."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its recovery action.

    Attributes:
        kind: the error class, ``check`` or ``log``.
    """

    kind: str
    what: str
    action: str


def messages() -> list[Message]:
    """All messages with a recovery action, each once."""
    found: dict[Message, None] = {}
    for path in sorted(_SOURCE.rglob("*.py")):
        found |= dict.fromkeys(_messages_of(_Module(path)))
    return list(found)


def page() -> str:
    """The whole page."""
    found = messages()
    kinds = [kind for kind in _error_classes() if any(each.kind == kind for each in found)]
    sections = [_section(kind, _meaning(kind), found) for kind in kinds]
    sections += [
        _section("check", "A line of `pgsluice check`. It changes nothing.", found),
        _section("log", "A line of the log or of `pgsluice status`.", found),
    ]
    return "\n".join([_HEAD, *sections])


def _section(kind: str, meaning: str, found: Iterable[Message]) -> str:
    titles = {"check": "Findings of `pgsluice check`", "log": "Log and status"}
    lines = [f"## {titles.get(kind, kind)}", meaning, "", "| message | what to do |", "|---|---|"]
    lines += sorted(f"| {each.what} | {each.action} |" for each in found if each.kind == kind)
    return "\n".join(lines) + "\n"


def _error_classes() -> dict[str, type[PgsluiceError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, PgsluiceError)
    } | {"SqlRefused": PgsluiceError}


def _meaning(kind: str) -> str:
    if kind == "SqlRefused":
        return "A statement of `[publications]` that PostgreSQL refuses. Exit code 2."
    error = _error_classes()[kind]
    doc = inspect.cleandoc(error.__doc__ or "").partition("\n\n")[0]
    doc = re.sub(r"[:;] fact(s)?:? .*", ".", " ".join(doc.split())).replace("``", "`")
    if error is PgsluiceError:
        doc = "The work failed for another reason."
    return f"{doc} Exit code {error.exit_code}."


class _Module:
    """A module's tree, with the parents of its nodes and its own and imported constants."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions = {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)
        }
        self.values: dict[str, list[ast.expr]] = {}
        self.imports: dict[str, Path] = {}
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values[name] = [value]
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.values[name] = [value]
                case ast.ImportFrom(module=module, names=names) if module:
                    file = _SOURCE / Path(*module.split(".")).with_suffix(".py")
                    self.imports |= {each.name: file for each in names if file.exists()}


@cache
def _module(path: Path) -> _Module:
    return _Module(path)


def _messages_of(module: _Module) -> Iterator[Message]:
    for scope, node in _nodes(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[_, what, todo]) if kind in _FINDINGS:
                yield from _rows(module, scope, "check", [what], todo)
            case ast.Call(args=args, keywords=keywords):
                hint = next((each.value for each in keywords if each.arg == "hint"), None)
                if hint is not None:
                    yield from _rows(module, scope, _kind(module, node.func), args[:1], hint)
            case ast.Constant(value=str()) | ast.JoinedStr():
                for text in _texts(module, scope, node):
                    what, arrow, action = text.replace("%s", "…").partition(_ARROW)
                    if arrow and _has_words(what) and _has_words(action):
                        yield Message("log", _cell(what), _cell(action))


def _kind(module: _Module, function: ast.expr) -> str:
    """The class of the error that a call makes."""
    name = ast.unparse(function).rpartition(".")[2]
    made = module.functions.get(name)
    if made is not None and made.returns is not None:
        name = ast.unparse(made.returns)
    return name if name in _error_classes() else "PgsluiceError"


def _nodes(
    node: ast.AST, scope: ast.FunctionDef | None = None
) -> Iterator[tuple[ast.FunctionDef | None, ast.AST]]:
    """Each expression with the function around it, without docstrings and parts of texts."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        yield scope, child
        if not isinstance(child, ast.JoinedStr):
            yield from _nodes(child, child if isinstance(child, ast.FunctionDef) else scope)


def _rows(
    module: _Module, scope: ast.FunctionDef | None, kind: str, what: list[ast.expr], hint: ast.expr
) -> Iterator[Message]:
    actions = [text for text in _texts(module, scope, hint) if _has_words(text)]
    whats = [text for each in what for text in _texts(module, scope, each) if _has_words(text)]
    if whats and actions:
        yield Message(kind, " / ".join(map(_cell, whats)), " / ".join(map(_cell, actions)))


def _has_words(text: str) -> bool:
    """False for a text that only passes others on."""
    return re.search(r"[A-Za-z]{2}", _PLACEHOLDER.sub("", text)) is not None


def _texts(
    module: _Module, scope: ast.FunctionDef | None, node: ast.expr, depth: int = 0
) -> list[str]:
    """What a text can be; a value that is not known is ``{its name}``."""

    def below(node: ast.expr) -> list[str]:
        return _texts(module, scope, node, depth + 1)

    if depth > _DEPTH:
        return [_placeholder(node)]
    match node:
        case ast.Constant(value=None):
            return []
        case ast.Constant(value=value):
            return [str(value)]
        case ast.JoinedStr(values=values):
            return [_joined(values, below)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [one + other for one in below(left) for other in below(right)]
        case ast.IfExp(body=body, orelse=other):
            return list(dict.fromkeys(below(body) + below(other)))
        case ast.BoolOp(op=ast.Or(), values=values):
            return list(dict.fromkeys(text for each in values for text in below(each)))
        case ast.Name(id=name):
            found = [text for value in _assigned(scope, name) for text in below(value)]
            return found or _constants(module, name, depth) or [_placeholder(node)]
        case ast.Call(func=ast.Name(id=name)):
            return _returned(module, name, depth) or [_placeholder(node)]
    return [_placeholder(node)]


def _joined(values: list[ast.expr], below: Callable[[ast.expr], list[str]]) -> str:
    parts = []
    for value in values:
        if isinstance(value, ast.FormattedValue):
            texts = below(value.value)
            known = len(texts) == 1 and not texts[0].startswith("{")
            parts.append(texts[0] if known else _placeholder(value.value))
        elif isinstance(value, ast.Constant):
            parts.append(str(value.value))
    return "".join(parts)


def _assigned(scope: ast.FunctionDef | None, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(scope) if scope is not None else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from (
                    value
                    for target, value in zip(names, values, strict=False)
                    if isinstance(target, ast.Name) and target.id == name
                )


def _constants(module: _Module, name: str, depth: int) -> list[str]:
    if name in module.imports:
        other = _module(module.imports[name])
        return _constants(other, name, depth + 1) if name in other.values else []
    return [
        text for value in module.values.get(name, ()) for text in _texts(module, None, value, depth)
    ]


def _returned(module: _Module, name: str, depth: int) -> list[str]:
    """What a function of this or an imported module can return."""
    if name in module.imports:
        module = _module(module.imports[name])
    function = module.functions.get(name)
    if function is None or depth >= _DEPTH:
        return []
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    texts = [
        text
        for value in returns
        if value is not None
        for text in _texts(module, function, value, depth + 1)
    ]
    return [text for text in dict.fromkeys(texts) if " " in text.strip("{}")]


def _placeholder(node: ast.expr) -> str:
    """The name of a value, in braces."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "{" + _WORDS.get(name, name.strip("_").replace("_", " ").lower()) + "}"
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key))]):
            return "{" + key + "}"
        case ast.Call(func=ast.Name(id="map"), args=[_, values]):
            return _placeholder(values)
        case ast.GeneratorExp(generators=[each, *_]):
            return _placeholder(each.iter)
        case ast.BoolOp(values=[first, *_]):
            return _placeholder(first)
        case ast.Call(args=[first, *_]) if not isinstance(first, ast.Constant):
            return _placeholder(first)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return "{" + name.strip("_").replace("_", " ") + "}"
        case ast.Subscript(value=value):
            return _placeholder(value)
    return "…"


def _cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    text = re.sub(r"(?<=[^:;.?])\n", "; ", text.strip())
    text = re.sub(r"\{([a-zA-Z][^{}]*)\}", r"\0\1\0", " ".join(text.split()))
    text = text.replace("*", "\\*").replace("<", "&lt;").replace("|", "\\|")
    return re.sub(r"\0([^\0]*)\0", r"*\1*", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
