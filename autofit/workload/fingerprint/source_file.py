"""A file's statements: which names each binds, which do something when they run, and what it imports."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import textwrap
from collections.abc import Iterator
from pathlib import Path

from autofit.workload.fingerprint.modules import tops_of

_MOST_FILES = 10_000  # whose statements are kept, for the next tune of a sweep


def of_text(text: str) -> str:
    """Python text without its layout, comments and docstrings; as it is where it is not Python."""
    tree = _parsed(textwrap.dedent(text))
    if tree is None:
        return text
    for _ in nodes_of(tree):
        pass
    try:
        return ast.dump(tree)
    except RecursionError:
        return text


def read(path: Path) -> SourceFile:
    """Read a file; one that has not changed since it was read last is not read again."""
    try:
        told = path.stat()
    except OSError:
        return SourceFile(path)
    return _read(path, told.st_mtime_ns, told.st_size)


@functools.lru_cache(_MOST_FILES)
def _read(path: Path, changed: int, size: int) -> SourceFile:
    return SourceFile(path)


class SourceFile:
    """The statements at the top of a file: which names each binds, and which do something when they run."""

    def __init__(self, path: Path) -> None:
        content, self.tops = b"", tops_of(path)
        with contextlib.suppress(OSError):  # whoever imports it will say so
            content = path.read_bytes()
        parsed = _parsed(content) if path.suffix == ".py" else None
        self.is_python = parsed is not None
        self._digest = hashlib.sha256(content).hexdigest()
        self._texts: dict[int, str] = {}
        self.body = [s for s in parsed.body if not _is_constant(s)] if parsed else [ast.Expr(ast.Constant(self._digest))]
        self.bound: dict[str, list[int]] = {}
        self.stars: list[int] = []
        self.effects: list[int] = []
        self.derived: list[str] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        for index, statement in enumerate(self.body):
            for name in _names(statement):
                (self.stars if name == "*" else self.bound.setdefault(name, [])).append(index)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.imports.append(statement)
            elif _does_something(statement):
                self.effects.append(index)
            elif isinstance(statement, ast.ClassDef) and statement.bases:
                self.derived.append(statement.name)

    def text(self, index: int) -> str:
        """A statement as text without its layout; the whole file where it is nested too deeply for that."""
        if index not in self._texts:
            try:
                self._texts[index] = ast.dump(self.body[index])
            except RecursionError:
                self._texts[index] = self._digest
        return self._texts[index]


def _names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, or changes something of, at the top of its file; `*` for what is not told."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target: ast.expr = node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _does_something(statement: ast.stmt) -> bool:
    """Whether a file does more by a statement, when it is imported, than bind a name to what is written there."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return bool(statement.decorator_list or getattr(statement, "keywords", ()))
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return any(
            isinstance(node, ast.Call | ast.Attribute | ast.Subscript) and _runs(node) for node in ast.walk(statement)
        )
    return not (isinstance(statement, ast.If) and not statement.orelse and _asks_for_main(statement.test))


def _runs(node: ast.AST) -> bool:
    """Whether it is a call, or changes what is bound elsewhere."""
    return isinstance(node, ast.Call) or (
        isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    )


def _asks_for_main(test: ast.expr) -> bool:
    """Whether it is the condition under which a file knows that it is a program."""
    sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) else []
    return {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}


def imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[list[str], list[str] | None]]:
    """(module's name in parts, names in it or None for all of it) of an import; without parts: the folder's own package."""
    if isinstance(node, ast.Import):
        yield from ((alias.name.split("."), None) for alias in node.names)
    else:
        yield (node.module.split(".") if node.module else []), [alias.name for alias in node.names]


def written_out(argument: ast.expr) -> tuple[str, bool]:
    """How a text begins that an expression gives, as far as it is written out, and whether that is all of it."""
    if isinstance(argument, ast.Constant):
        return str(argument.value), True
    if isinstance(argument, ast.JoinedStr) and argument.values:
        return written_out(argument.values[0])[0], False
    if isinstance(argument, ast.BinOp):
        return written_out(argument.left)[0].partition("%")[0], False
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):  # "…{}…".format(…)
        return written_out(argument.func.value)[0].partition("{")[0], False
    return "", False


def _parsed(text: str | bytes) -> ast.Module | None:
    """The syntax tree of a text; None where it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # zero bytes; nested deeper than the parser goes
        return None


def _is_constant(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or does as little."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All of a tree, from which docstrings are taken away."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
            opens = node.body[0]
            if isinstance(opens, ast.Expr) and isinstance(opens.value, ast.Constant) and isinstance(opens.value.value, str):
                del node.body[0]
        yield node
        for held in vars(node).values():
            if isinstance(held, ast.AST):
                todo.append(held)
            elif isinstance(held, list):
                todo += [part for part in held if isinstance(part, ast.AST)]
