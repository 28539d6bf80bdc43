"""`private_names.md` lists each private name of a library that the package uses, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import autofit

PACKAGE = Path(autofit.__file__).parent
TABLE = Path(__file__).with_name("private_names.md")
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \| [^|]*\w[^|]* \|")
# modules whose names their libraries may change at any time
MODULE = re.compile(
    r"keras\.src\.[\w.]+|tensorflow\.python\.[\w.]+|(?:\w+\.)+_[a-z]\w*(?:\.\w+)*"
)
PRIVATE = re.compile(r"_[a-z]\w+")
IN_EXPRESSION = re.compile(
    r"(?:\)|^)\.(_[a-z]\w+)"
)  # of Python, which is evaluated elsewhere
# documented in spite of their names
PUBLIC = {"_asdict", "_exit", "_fields", "_value_"}
OF_AUTOFIT = {"_autofit_noted"}  # set on objects of the user
NAMES_OF = {"getattr", "hasattr", "_get_graph"}  # functions that are given a name


def test_the_table_lists_the_private_names_of_the_code():
    rows = ROW.findall(TABLE.read_text())
    listed = {
        (name, folder) for name, folders in rows for folder in folders.split(", ")
    }
    trees = {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    own = set[str]().union(*map(defined_in, trees.values()))
    used = {
        (name, str(file.parent.relative_to(PACKAGE)))
        for file, tree in trees.items()
        for name in (attributes_in(tree) - own) | written_in(tree)
    }
    assert used - listed == set()
    assert listed - used == set()


def attributes_in(tree: ast.Module) -> set[str]:
    """Return the attributes that code uses whose names are private."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {*filter(PRIVATE.fullmatch, names)} - PUBLIC


def written_in(tree: ast.Module) -> set[str]:
    """Return the private modules that code imports, and the private names in its texts."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {*filter(is_private_module, imported)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if is_private_module(node.value) else set()
            names |= {*IN_EXPRESSION.findall(node.value)}
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in NAMES_OF
        ):
            names |= {*filter(PRIVATE.fullmatch, texts_in(node))}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            names |= {*filter(PRIVATE.fullmatch, texts_in(statement))}
    return names - PUBLIC - OF_AUTOFIT


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a node, without those that are joined with others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if not isinstance(node, ast.JoinedStr):
        for part in ast.iter_child_nodes(node):
            yield from texts_in(part)


def is_private_module(name: str) -> bool:
    return MODULE.fullmatch(name) is not None and not name.startswith("autofit.")


def defined_in(tree: ast.Module) -> set[str]:
    """Return the names that code defines itself: functions, classes, fields and attributes."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return names


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from jax._src import compiler", {"jax._src.compiler"}),
        ("import_module('keras.src.trainers.trainer')", {"keras.src.trainers.trainer"}),
        ("model._symbolic_build(data_batch=batch)", {"_symbolic_build"}),
        ("hasattr(trainer, '_build_scan')", {"_build_scan"}),
        ("_SCAN = '_build_scan'", {"_build_scan"}),
        (
            "_SETTINGS = (f'{context}._threads', 'context()._pool')",
            {"_threads", "_pool"},
        ),
        ("os._exit(0), getattr(a, f'{name}_bytes')", set()),
        ("from autofit.records._units import counted", set()),
    ],
)
def test_private_names_are_found_in_each_form_in_which_they_are_used(source, expected):
    tree = ast.parse(source)
    assert attributes_in(tree) | written_in(tree) == expected
