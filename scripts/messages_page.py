"""Write docs/messages.md: every message of pgsluice that says what to do, from the code itself.

``python scripts/messages_page.py`` writes the page; tests/docs/test_messages_page.py compares it
with the code. The rows are found in the syntax trees: errors with a ``hint``, findings of
``pgsluice check``, and texts with an arrow.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pgsluice import errors
from pgsluice.config.in_force import TAKEN_OVER
from pgsluice.errors import PgsluiceError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"
_SOURCE = ROOT / "src"
_ARROW = "\n  → "
_HEAD = """\
# Messages: what they mean and what to do
Search this page for a part of the message. *Words like this* stand for a name or a value. A part
in ⟨angle brackets⟩ is not always there, and of the parts of ⟨one|another⟩ there is one. `CONFIG`
stands for the path of your configuration, `TABLE` for the table that the error is about.
`pgsluice` prints the first column and, after `→`, the last one. Texts between ` / ` are those of
different cases.

Each section has one kind of error: what it means, and the [exit code](exit-codes.md) of a
command that it ends. In a run, an error of one table pauses (*parks*) that table, and all other
tables continue. `scripts/messages_page.py` writes the page from the code.

**After a change of the configuration**, an active run has to read it.
"""
_SETTINGS = """\
On SIGHUP (`kill -HUP`), and when `pgsluice copy` asks it for a copy, a run reads these settings of
a `[[subscription]]` again: {taken} (but for its path). It also reads the statements of
`[publications]` again. For all other settings, restart `pgsluice run CONFIG`.
"""
_SQL_ERRORS = {
    "SqlRefused": "A statement of `[publications]` that PostgreSQL refuses.",
    "FilterNotExact": "A row filter that PostgreSQL accepts and pgsluice cannot evaluate exactly.",
}
_DEPTH = 7
_LONG = 400
"""Alternatives of a part are shown up to so many characters in all."""
_PLACEHOLDER = re.compile(r"\{[a-zA-Z ]*\}")
_LOG_METHODS = frozenset({"info", "warning", "error"})
_VALUE = re.compile(r"%[sdg]")
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
        found |= dict.fromkeys(_messages_of(_module(path)))
    return list(found)


def page() -> str:
    """The whole page."""
    found = messages()
    kinds = [kind for kind in _error_classes() if any(each.kind == kind for each in found)]
    sections = [_section(kind, _meaning(kind), found) for kind in kinds]
    sections += [
        _section(
            "disk",
            "A part of other messages: what is wrong with a folder or its disk.",
            _disk_messages(),
        ),
        _section("check", "A line of `pgsluice check`. It changes nothing.", found),
        _section("log", "A line of the log or of `pgsluice status`.", found),
    ]
    taken = ", ".join(f"`{name}`" for name in sorted({*TAKEN_OVER} - {"sink"})) + " and `sink`"
    settings = " ".join(_SETTINGS.format(taken=taken).split())
    return "\n".join(
        [_HEAD + textwrap.fill(settings, 100, break_on_hyphens=False) + "\n", *sections]
    )


def _disk_messages() -> list[Message]:
    """What :mod:`pgsluice.disk` says of the errors of disks."""
    module = _module(_SOURCE / "pgsluice" / "disk.py")
    (table,) = module.values["_TROUBLES"]
    assert isinstance(table, ast.Dict)
    found: dict[Message, None] = {}
    for pair in table.values:
        assert isinstance(pair, ast.Tuple)
        (what,), (action,) = (_texts(module, None, each) for each in pair.elts)
        found[Message("disk", _cell(what.replace("{}", "{folder}")), _cell(action))] = None
    return list(found)


def _section(kind: str, meaning: str, found: Iterable[Message]) -> str:
    titles = {"disk": "Disks", "check": "Findings of `pgsluice check`", "log": "Log and status"}
    lines = [f"## {titles.get(kind, kind)}", meaning, "", "| message | what to do |", "|---|---|"]
    lines += sorted(f"| {each.what} | {each.action} |" for each in found if each.kind == kind)
    return "\n".join(lines) + "\n"


def _error_classes() -> dict[str, type[PgsluiceError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, PgsluiceError)
    } | dict.fromkeys(_SQL_ERRORS, PgsluiceError)


def _meaning(kind: str) -> str:
    if kind in _SQL_ERRORS:
        return f"{_SQL_ERRORS[kind]} Exit code 2."
    error = _error_classes()[kind]
    doc = inspect.cleandoc(error.__doc__ or "").partition("\n\n")[0]
    doc = re.sub(r"[:;] fact(s)?:? .*", ".", " ".join(doc.split())).replace("``", "`")
    if error is PgsluiceError:
        doc = "The work failed for another reason."
    return f"{doc} Exit code {error.exit_code}."


class _Module:
    """A module's tree, with its functions, their calls, and its own and imported constants.

    Attributes:
        logged: text of a call for the log, by its id -> the values that it is logged with.
    """

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions = {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)
        }
        self.calls: dict[str, list[tuple[ast.FunctionDef | None, ast.Call]]] = {}
        self.logged: dict[int, list[ast.expr]] = {}
        for scope, node in _nodes(self.tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="np"))):
                    pass
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    self.calls.setdefault(name, []).append((scope, node))
                    if name in _LOG_METHODS and node.args:
                        self.logged[id(node.args[0])] = node.args[1:]
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
                kind = _kind(module, node.func)
                # PostgreSQL's hints are not on the page; those of filters that it accepts are
                names = ("hint", "server_hint") if kind == "FilterNotExact" else ("hint",)
                hint = next((each.value for each in keywords if each.arg in names), None)
                if hint is not None:
                    yield from _rows(module, scope, kind, args[:1], hint)
            case ast.Constant(value=str()) | ast.JoinedStr():
                for text in _texts(module, scope, node):
                    filled = _with_values(text, module.logged.get(id(node), ()))
                    what, arrow, action = filled.partition(_ARROW)
                    if arrow and _has_words(what) and _has_words(action):
                        yield Message("log", _cell(what), _cell(action))


def _with_values(text: str, values: Sequence[ast.expr]) -> str:
    """A text for the log with its values, as far as they are known."""
    given = iter(values)
    return _VALUE.sub(lambda _: _placeholder(next(given, ast.Constant(""))), text)


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
            found += _unpacked(module, scope, name, depth) + _given(module, scope, name, depth)
            found = found or _constants(module, name, depth) or [_placeholder(node)]
            return list(dict.fromkeys(found))
        case ast.Call(func=ast.Name(id=name)):
            return _returned(module, name, depth) or [_placeholder(node)]
    return [_placeholder(node)]


def _joined(values: list[ast.expr], below: Callable[[ast.expr], list[str]]) -> str:
    parts = []
    for value in values:
        if isinstance(value, ast.FormattedValue):
            parts.append(_one_of(below(value.value)) or _placeholder(value.value))
        elif isinstance(value, ast.Constant):
            parts.append(str(value.value))
    return "".join(parts)


def _one_of(texts: list[str]) -> str:
    """One text for all that a part of a text can be; empty: one of them is not known, or they are
    long."""
    if len(texts) == 1 and not texts[0].startswith("{"):
        return texts[0]
    some = [text for text in texts if text]
    if not some or any(text.startswith("{") for text in some) or sum(map(len, some)) > _LONG:
        return ""
    is_optional = len(some) < len(texts)
    if not is_optional and all(text.isdigit() for text in some):
        return ""
    return "⟨" + "|".join(some) + "⟩" if is_optional or len(some) > 1 else some[0]


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


def _unpacked(module: _Module, scope: ast.FunctionDef | None, name: str, depth: int) -> list[str]:
    """What a name is that gets one of the values of a tuple."""
    found: list[str] = []
    for node in ast.walk(scope) if scope is not None else ():
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                names = [each.id if isinstance(each, ast.Name) else None for each in targets]
                if name not in names or isinstance(value, ast.Tuple):
                    continue
                tuples = list[tuple[_Module, ast.FunctionDef, ast.Tuple]]()
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                    tuples = _returned_tuples(module, value.func.id)
                if not tuples:
                    found.append(_placeholder(ast.Name(name)))
                for other, function, elements in tuples:
                    element = elements.elts[names.index(name)]
                    found += _texts(other, function, element, depth + 1)
    return found


def _returned_tuples(
    module: _Module, name: str
) -> list[tuple[_Module, ast.FunctionDef, ast.Tuple]]:
    other = _module(module.imports[name]) if name in module.imports else module
    function = other.functions.get(name)
    if function is None:
        return []
    return [
        (other, function, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]


def _given(module: _Module, scope: ast.FunctionDef | None, name: str, depth: int) -> list[str]:
    """What a parameter is in the calls of its function."""
    if scope is None or depth >= _DEPTH:
        return []
    names = [each.arg for each in scope.args.args if each.arg not in ("self", "cls")]
    keywords = [each.arg for each in scope.args.kwonlyargs]
    if name not in [*names, *keywords]:
        return []
    found: list[str] = []
    for other, caller, call in _calls(module, scope.name):
        by_name = {each.arg: each.value for each in call.keywords}
        by_place = dict(zip(names, call.args, strict=False))
        value = by_name.get(name) or by_place.get(name)
        if value is None or any(isinstance(each, ast.Starred) for each in call.args):
            value = _default(scope, name)
        if value is None:
            return []
        found += _texts(other, caller, value, depth + 1) if caller is not scope else []
    unknown = _placeholder(ast.Name(name))
    return [text if re.search(r"[A-Za-z]{2}", text) else unknown for text in found]


def _default(scope: ast.FunctionDef, name: str) -> ast.expr | None:
    args = scope.args
    last = dict(
        zip(reversed([each.arg for each in args.args]), reversed(args.defaults), strict=False)
    )
    only = {each.arg: value for each, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return last.get(name) or only.get(name)


def _calls(module: _Module, name: str) -> list[tuple[_Module, ast.FunctionDef | None, ast.Call]]:
    """The calls of a module's function; none if another function has its name."""
    modules = [module] if name.startswith("_") else _modules()
    if name.startswith("__") or sum(name in each.functions for each in modules) != 1:
        return []
    return [(each, scope, call) for each in modules for scope, call in each.calls.get(name, ())]


@cache
def _modules() -> list[_Module]:
    return [_module(path) for path in sorted(_SOURCE.rglob("*.py"))]


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
