"""Mark the ints of the user's files that may set a knob, so that `fit` can tell where one came from.

Not the name of a variable says what sets the batch size of `fit`, but its flow: each expression
that gives its value to something named like a knob is compiled as `mark(expression, number)`. An
int becomes a `Marked` int, which behaves like any int and knows its place. Arithmetic loses the
mark, so that of `batch = 8 * devices` the whole expression is the place.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from autofit.records.places import Place

MARK = "__autofit_mark__"  # the name of `mark` in the user's files
# the flow decides, so names may be many
_NAMES = re.compile(
    r"batch|(^|_)bs($|_)|worker|thread|parallel|n_?jobs|n_?proc|queue|prefetch|buffer"
    r"|steps_per_(execution|loop|call)",
    re.IGNORECASE,
)
# positional arguments that set knobs, by the name of the function or method that takes them
_POSITIONAL = {
    "batch": ("batch_size",),
    "padded_batch": ("batch_size",),
    "ragged_batch": ("batch_size",),
    "prefetch": ("prefetch",),
    "fit": ("", "", "batch_size"),
    "DataLoader": ("", "batch_size"),
}
# values of these kinds are never ints, or are looked at part by part
_NO_INTS = (
    ast.Starred,
    ast.Dict,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Lambda,
    ast.JoinedStr,
    ast.Compare,
    ast.ListComp,
    ast.GeneratorExp,
)

_places: list[Place] = []  # of this process, by number
# where the user's files compute with marked ints: place, operator, file and line
uses = dict[tuple[Place, str, str, int], None]()


class Marked(int):
    """An int that knows the place which gives its value."""

    place: Place

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _operation(name: str, sign: str) -> Any:
    compute = getattr(int, name)

    def method(self: Marked, *others: Any) -> Any:
        frame = sys._getframe(1)
        uses[self.place, sign, frame.f_code.co_filename, frame.f_lineno] = None
        return compute(self, *others)

    return method


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/"}.items():
    for _side in ("", "r"):
        _method = f"__{_side}{_name}__"
        setattr(Marked, _method, _operation(_method, _sign))


def marked(value: Any, place: Place) -> Any:
    """Return an int with its place; a marked one keeps the first, and anything else is returned as
    it is.
    """
    if type(value) is not int:
        return value
    made = Marked(value)
    made.place = Place(value, place.file, place.span, place.template, place.name, place.option)
    return made


def mark(value: Any, number: int) -> Any:
    """Mark a value of the user's compiled code."""
    return marked(value, _places[number])


def plain(value: Any) -> Any:
    """Return a marked int as a plain one; anything else as it is."""
    return int(value) if isinstance(value, Marked) else value


def places_at(file: str, line: int) -> list[Place]:
    """Return the places that a line of a file has; of nested ones, the outer comes last."""
    return [place for place in _places if place.file == file and place.line == line]


def is_knob_name(name: Any) -> bool:
    """Return whether something of this name may set a knob."""
    return isinstance(name, str) and _NAMES.search(name) is not None


class Marker(ast.NodeTransformer):
    """Wraps each expression of a file that gives its value to something named like a knob."""

    def __init__(self, file: str, tree: ast.AST) -> None:
        self._file = file
        self._parameters = dict(_parameters_in(tree))

    def _wrapped(self, node: Any, name: Any) -> Any:
        if node is None or not is_knob_name(name) or isinstance(node, _NO_INTS):
            return node
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            return node
        span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        _places.append(Place(None, self._file, span, name=name))
        call = ast.Call(ast.Name(MARK, ast.Load()), [node, ast.Constant(len(_places) - 1)], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        for target in node.targets:
            values = node.value
            if isinstance(target, ast.Tuple) and isinstance(values, ast.Tuple):
                pairs = zip(target.elts, values.elts, strict=False)
                values.elts = [self._wrapped(value, _name_of(part)) for part, value in pairs]
            else:
                node.value = self._wrapped(node.value, _name_of(target))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.value = self._wrapped(node.value, _name_of(node.target))
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = self._wrapped(node.value, _name_of(node.target))
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        pairs = zip(node.keys, node.values, strict=True)
        node.values = [self._wrapped(value, getattr(key, "value", "")) for key, value in pairs]
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        self.generic_visit(node)
        names = [parameter.arg for parameter in (*node.posonlyargs, *node.args)]
        with_default = names[len(names) - len(node.defaults) :]
        pairs = zip(node.defaults, with_default, strict=True)
        node.defaults = [self._wrapped(default, name) for default, name in pairs]
        keywords = zip(node.kw_defaults, node.kwonlyargs, strict=True)
        node.kw_defaults = [self._wrapped(default, each.arg) for default, each in keywords]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for keyword in node.keywords:
            keyword.value = self._wrapped(keyword.value, keyword.arg)
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        names: Sequence[str] = _POSITIONAL.get(called, self._parameters.get(called, ()))
        for index, name in enumerate(names[: len(node.args)]):
            node.args[index] = self._wrapped(node.args[index], name)
        return node


def _name_of(target: ast.AST) -> str:
    """Return the name of a variable, an attribute or a key that is assigned to."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    key = getattr(getattr(target, "slice", None), "value", "")
    return key if isinstance(key, str) else ""


def _parameters_in(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield each function and class of a file with the names of its positional parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, _positional(node)
        if isinstance(node, ast.ClassDef):
            inits = (
                part
                for part in node.body
                if isinstance(part, ast.FunctionDef) and part.name == "__init__"
            )
            for init in inits:
                yield node.name, _positional(init)


def _positional(function: ast.FunctionDef) -> list[str]:
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] == ["self"] else names
