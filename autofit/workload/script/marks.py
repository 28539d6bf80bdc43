"""Mark the ints of the user's files that may set a knob, so that `fit` can tell their places.

Not the name of a variable says what sets the batch size of `fit`, but its flow: each expression
that gives its value to something named like a knob is compiled as `mark(expression, number)`. An
int becomes a `Marked` int, which behaves like any int and knows its place. Arithmetic loses the
mark, so that of `batch = 8 * devices` the whole expression is the place.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autofit.records.places import Place

MARK = "__autofit_mark__"  # the name of `mark` in the user's files
# the flow decides, so names may be many
_NAMES = re.compile(
    r"batch|(^|_)bs($|_)|worker|thread|parallel|n_?jobs|n_?proc|multiproc|queue|prefetch|buffer"
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
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "truediv")

# the user's files that this process has compiled, with their text as it was run
texts = dict[str, str]()
# of those files, in the order in which they are compiled: of nested places, the outer comes last.
# One has a value once an int has been marked there
places = list[Place]()
# where the user's files compute with marked ints: place, method, file and line
uses = dict[tuple[Place, str, str, int], None]()


class Marked(int):
    """An int that knows the place which gives its value."""

    place: Place

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _noted(name: str) -> Any:
    compute = getattr(int, name)

    def method(self: Marked, *others: Any) -> Any:
        frame = sys._getframe(1)
        file = frame.f_code.co_filename
        uses[self.place, name, file, frame.f_lineno] = None
        return compute(self, *others)

    return method


for _name in _ARITHMETIC:
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(Marked, _method, _noted(_method))


def marked(value: Any, place: Place) -> Any:
    """Return an int with its place; a marked one keeps the first, and anything else is returned as
    it is.
    """
    if type(value) is not int:
        return value
    made = Marked(value)
    made.place = replace(place, value=value)
    return made


def mark(value: Any, number: int) -> Any:
    """Mark a value of the user's compiled code."""
    made = marked(value, places[number])
    if made is not value:
        places[number] = made.place
    return made


def plain(value: Any) -> Any:
    """Return a marked int as a plain one; anything else as it is."""
    return int(value) if isinstance(value, Marked) else value


def place_of(value: Any, added: Place | None = None) -> Place:
    """Return the place of a marked int; of anything else the one that can be `added`, or a place
    that is not known.
    """
    if isinstance(value, Marked):
        return value.place
    return added or Place(value)


def is_knob_name(name: Any) -> bool:
    """Return whether something of this name may set a knob."""
    return isinstance(name, str) and _NAMES.search(name) is not None


class Marker(ast.NodeTransformer):
    """Wraps each expression of a file that gives its value to something named like a knob."""

    def __init__(self, file: str, tree: ast.AST) -> None:
        self._file = file
        self._names = dict[ast.AST, str]()
        parameters = dict(_parameters_in(tree))
        for node in ast.walk(tree):
            for target, value in _bindings(node, parameters):
                if is_knob_name(name := name_of(target)):
                    self._names[value] = name

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if node not in self._names or isinstance(node, ast.Starred):
            return node
        return self.wrap(node, self._names[node])

    def wrap(self, node: Any, name: str) -> ast.AST:
        span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        function = ast.Name(MARK, ast.Load())
        number = ast.Constant(len(places))
        call = ast.Call(function, [node, number], [])
        place = Place(None, self._file, span, name=name)
        places.append(place)
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _bindings(
    node: ast.AST, parameters: Mapping[str, list[ast.arg]]
) -> Iterator[tuple[Any, Any]]:
    """Yield each expression of a node that gives its value to something, behind what gets it."""
    match node:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            yield from zip(targets, values, strict=False)
        case ast.Assign(targets, value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target, _, value) | ast.NamedExpr(target, value):
            yield target, value
        case ast.Dict(keys, values):
            yield from zip(keys, values, strict=True)
        case ast.keyword(name, value):
            yield name, value
        case ast.arguments():
            # defaults are those of the last parameters
            positional = reversed([*node.posonlyargs, *node.args])
            yield from zip(positional, reversed(node.defaults), strict=False)
            yield from zip(node.kwonlyargs, node.kw_defaults, strict=True)
        case ast.Call(function, arguments):
            called = name_of(function)
            known: Any = parameters.get(called, ())
            known = _POSITIONAL.get(called, known)
            yield from zip(known, arguments, strict=False)


def name_of(target: Any) -> Any:
    """Return the name of a variable, an attribute, a parameter or a key; empty if it has none."""
    match target:
        case (
            str(name)
            | ast.Name(name)
            | ast.Attribute(_, name)
            | ast.arg(name)
            | ast.Constant(name)
            | ast.Subscript(_, ast.Constant(name))
        ):
            return name
    return ""


def _parameters_in(tree: ast.AST) -> Iterator[tuple[str, list[ast.arg]]]:
    """Yield each function and class of a file with its positional parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, _positional(node)
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    yield node.name, _positional(part)


def _positional(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args]
    is_method = bool(parameters) and parameters[0].arg == "self"
    return parameters[1:] if is_method else parameters
