"""What a script's call of `fit` was given, and where the script sets each knob of it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import STEPS_PER_EXECUTION
from autofit.records.places import Edits, Place
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.knobs import has_base, is_pydataset
from autofit.workload.script import Script
from autofit.workload.script.marks import Marked, places_at, plain, uses
from autofit.workload.script.run import AfterImport, texts

_BATCH = re.compile(r"batch|(^|_)bs($|_)", re.IGNORECASE)
_KERAS_BATCH = 32  # of `fit`, and of Keras's functions that make a data set
_NOTED = "_autofit_noted"  # an attribute of datasets and loaders: what made them was given
_ATTRIBUTES = ("workers", "max_queue_size", "use_multiprocessing")  # of a PyDataset
# the parameters of a loader's constructor, by knob
_OF_LOADER = {
    "batch_size": "batch_size",
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
}
_DIVISIONS = ("//", "/")


@dataclass(frozen=True)
class Call:
    """A call of the user's file, and the statement that has it."""

    file: str
    node: ast.Call
    statement: ast.stmt

    @property
    def name(self) -> str:
        return str(getattr(self.node.func, "attr", getattr(self.node.func, "id", "")))

    def with_keyword(self, name: str, value: Any) -> Place | None:
        """Return the place of a keyword argument that the call lacks; None if it can have none."""
        end = (self.node.end_lineno or 0, (self.node.end_col_offset or 1) - 1)  # the parenthesis
        arguments = [*self.node.args, *(keyword.value for keyword in self.node.keywords)]
        ends = [((a.end_lineno or 0, a.end_col_offset or 0), ", ") for a in arguments[-1:]]
        # behind a last argument in parentheses of its own, or behind a comma
        for position, comma in (*ends, (end, ", "), (end, "")):
            template = f"{comma}{name}={{}}"
            place = Place(value, self.file, (*position, *position), template, name)
            if self._takes(place):
                return place
        return None

    def _takes(self, place: Place) -> bool:
        """Return whether this call has the keyword argument once it is added at the place."""
        text = Edits({place.name: place}, {place.name: "0"}).apply(self.file, texts[self.file])
        try:
            nodes = ast.walk(ast.parse(text))
        except SyntaxError:
            return False
        begin = (self.node.lineno, self.node.col_offset)
        return any(
            isinstance(node, ast.Call)
            and (node.lineno, node.col_offset) == begin
            and any(keyword.arg == place.name for keyword in node.keywords)
            and ast.dump(node.func) == ast.dump(self.node.func)
            for node in nodes
        )

    def prefetching(self, argument: ast.expr, value: Any) -> Place | None:
        """Return the place behind an argument where its dataset can prefetch; None where a method
        cannot follow.
        """
        if not isinstance(argument, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            return None
        end = (argument.end_lineno or 0, argument.end_col_offset or 0)
        return Place(value, self.file, (*end, *end), ".prefetch({})", "prefetch")

    def with_attribute(self, target: ast.expr, name: str, value: Any) -> Place | None:
        """Return the place of a line before the statement that sets an attribute; None if it can
        have none.
        """
        lines = texts[self.file].splitlines()
        begin = lines[self.statement.lineno - 1].encode()[: self.statement.col_offset].decode()
        owner = ast.unparse(target)
        if begin.strip() or not re.fullmatch(r"[\w.]+", owner):
            return None
        position = (self.statement.lineno, self.statement.col_offset)
        return Place(
            value, self.file, (*position, *position), f"{owner}.{name} = {{}}\n{begin}", name
        )


@dataclass(frozen=True)
class Reached:
    """A call of `fit` of an unchanged script."""

    model: Any
    arguments: Mapping[str, Any]  # of `fit`, by name
    where: str  # such as "train.py:91"
    places: Mapping[str, Place] = field(default_factory=dict)  # by knob

    @property
    def data(self) -> Any:
        """The data, as `tune` takes it."""
        given = [self.arguments.get(name) for name in ("x", "y", "sample_weight")]
        if not Arrays.recognises((given[0],)):
            return given[0]
        while len(given) > 1 and given[-1] is None:
            given.pop()
        return tuple(given)


def call_at(frame: FrameType | None) -> tuple[Call | None, str]:
    """Return the innermost call of the user's files that a frame is below, and its file and line."""
    while frame is not None and frame.f_code.co_filename not in texts:
        frame = frame.f_back
    if frame is None:
        return None, ""
    file = frame.f_code.co_filename
    where = f"{Path(file).name}:{frame.f_lineno}"
    tree = ast.parse(texts[file])
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if sys.version_info >= (3, 11):
        position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        found = [call for call in calls if _position(call) == position]
    else:  # Python 3.10 knows the line only
        found = [call for call in calls if call.lineno == frame.f_lineno]
    if len(found) != 1:
        return None, where
    statements = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and (node.lineno, node.col_offset) <= (found[0].lineno, found[0].col_offset)
        and (found[0].end_lineno or 0) <= (node.end_lineno or 0)
    ]
    innermost = max(statements, key=lambda node: (node.lineno, node.col_offset))
    return Call(file, found[0], innermost), f"{Path(file).name}:{found[0].lineno}"


def _position(node: ast.Call) -> tuple[int | None, ...]:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def watch_data(imports: AfterImport) -> None:
    """Have datasets of tf.data and loaders of torch keep what they were made with."""
    imports.add("tensorflow", _watch_tfdata)
    imports.add("torch.utils.data", _watch_loader)


def _watch_tfdata(tensorflow: Any) -> None:
    dataset = tensorflow.data.Dataset
    for method, knobs in {
        "batch": {"batch_size": "batch_size"},
        "padded_batch": {"batch_size": "batch_size"},
        "ragged_batch": {"batch_size": "batch_size"},
        "prefetch": {"max_queue_size": "buffer_size"},
        "map": {"workers": "num_parallel_calls"},
    }.items():
        setattr(dataset, method, _noting(getattr(dataset, method), knobs))


def _noting(original: Any, knobs: Mapping[str, str]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        values = {knob: given[name] for knob, name in knobs.items() if name in given}
        made = original(
            self, *map(plain, args), **{name: plain(value) for name, value in kwargs.items()}
        )
        callee, _ = _callee(sys._getframe(1))
        setattr(made, _NOTED, (values, callee))
        return made

    return method


def _callee(frame: FrameType | None) -> tuple[Call | None, str]:
    """Return the user's call if what it calls takes a batch size, which the user does not give."""
    inner = frame
    while frame is not None and frame.f_code.co_filename not in texts:
        inner, frame = frame, frame.f_back
    if frame is None or inner is frame or inner is None:
        return None, ""
    return call_at(frame) if "batch_size" in inner.f_code.co_varnames else (None, "")


def _watch_loader(module: Any) -> None:
    loader = module.DataLoader
    original = loader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        values = {knob: given[name] for knob, name in _OF_LOADER.items() if name in given}
        original(self, *map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        setattr(self, _NOTED, (values, call_at(sys._getframe(1))[0]))

    loader.__init__ = init


def look(
    script: Script, model: Any, arguments: Mapping[str, Any], frame: FrameType | None
) -> Reached:
    """Find where the script sets the knobs of a call of `fit`; raise UsageError if the batch size
    has no place.
    """
    call, where = call_at(frame)
    is_direct = frame is not None and frame.f_code.co_filename in texts
    call = call if is_direct and call is not None and call.name == "fit" else None
    found = dict(_found_in(arguments, call, is_set="batch_size" in script.settings))
    places = {knob: value.place for knob, value in found.items() if isinstance(value, Marked)}
    places |= {knob: place for knob, place in found.items() if isinstance(place, Place)}
    steps = getattr(model, STEPS_PER_EXECUTION, 1)
    if isinstance(steps, Marked):
        places[STEPS_PER_EXECUTION] = steps.place
    elif call is not None and isinstance(call.node.func, ast.Attribute):
        line = call.with_attribute(call.node.func.value, STEPS_PER_EXECUTION, steps)
        places |= {} if line is None else {STEPS_PER_EXECUTION: line}
    size = found.get("batch_size")
    places |= _set_by_user(script, found)
    if "batch_size" not in places:
        places["batch_size"] = _by_name(size, where)
    given = {name: plain(value) for name, value in arguments.items()}
    return Reached(model, given, where, places)


def _found_in(
    arguments: Mapping[str, Any], call: Call | None, *, is_set: bool
) -> Iterator[tuple[str, Any]]:
    """Yield knobs of the data with marked ints, other ints, or places; `is_set` if the user names
    the batch size's.
    """
    x: Any = arguments.get("x")
    if hasattr(x, "element_spec"):
        yield from _in_tfdata(x, call, is_set=is_set)
    elif has_base(x, "torch.utils.data", "DataLoader"):
        yield from _in_loader(x)
    elif is_pydataset(x):
        yield from _in_pydataset(x, call)
    elif inspect.isgenerator(x) and (frame := x.gi_frame) is not None:
        read = {name: frame.f_globals.get(name) for name in x.gi_code.co_names}
        yield from _batch_among({**read, **frame.f_locals})
    elif (size := arguments.get("batch_size")) is not None:
        yield "batch_size", size
    elif call is not None:
        yield "batch_size", call.with_keyword("batch_size", _KERAS_BATCH)


def _in_tfdata(dataset: Any, call: Call | None, *, is_set: bool) -> Iterator[tuple[str, Any]]:
    found = dict[str, Any]()
    sizes = list(_batches_of(dataset))
    for node in _chain(dataset):
        values, callee = getattr(node, _NOTED, ({}, None))
        for knob, value in values.items():
            added = value
            if knob == "batch_size" and not isinstance(value, Marked) and callee is not None:
                added = callee.with_keyword("batch_size", int(value))
            found.setdefault(knob, added)
    places = {size.place for size in sizes if isinstance(size, Marked)}
    if len(places) > 1 and not is_set:
        lines = " and ".join(map(str, sorted(places, key=str)))
        raise UsageError(
            f"two datasets are joined whose batches are set at {lines}; name the place that sets "
            f"both: --set batch_size={min(map(str, places))}"
        )
    # what tf.data chooses itself stays so
    if not isinstance(found.get("workers"), Marked) or found["workers"] < 1:
        found.pop("workers", None)
    if "max_queue_size" not in found and call is not None:
        argument = _argument(call, "x", 0)
        if argument is not None:
            # without it, a config has the lowest value
            found["max_queue_size"] = call.prefetching(argument, 1)
    yield from found.items()


def _chain(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it was made of, the nearest first."""
    pending = [dataset]
    while pending:
        node = pending.pop(0)
        yield node
        pending += node._inputs() if hasattr(node, "_inputs") else []


def _batches_of(node: Any) -> Iterator[Any]:
    """Yield the batch size that is nearest to a dataset, of each of those that it joins."""
    values: dict[str, Any] = getattr(node, _NOTED, ({}, None))[0]
    if "batch_size" in values:
        yield values["batch_size"]
        return
    for inner in node._inputs() if hasattr(node, "_inputs") else []:
        yield from _batches_of(inner)


def _in_loader(loader: Any) -> Iterator[tuple[str, Any]]:
    noted: tuple[dict[str, Any], Call | None] = getattr(loader, _NOTED, ({}, None))
    values, call = noted
    for knob, name in _OF_LOADER.items():
        if knob in values:
            yield knob, values[knob]
        elif call is not None and call.name == "DataLoader":
            yield knob, call.with_keyword(name, getattr(loader, name))


def _in_pydataset(dataset: Any, call: Call | None) -> Iterator[tuple[str, Any]]:
    attributes = {name.lstrip("_"): value for name, value in vars(dataset).items()}
    yield from _batch_among(attributes)
    argument = None if call is None else _argument(call, "x", 0)
    for name in _ATTRIBUTES:
        value = getattr(dataset, name)
        if isinstance(value, Marked):
            yield name, value
        elif call is not None and argument is not None:
            yield name, call.with_attribute(argument, name, value)


def _batch_among(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the batch size among named values: marked ints first, and the usual name before others."""
    sizes = {
        name: value
        for name, value in names.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        # an attribute may have another name than what sets it
        and _BATCH.search(value.place.name if isinstance(value, Marked) else name)
    }
    if sizes:
        usual = min(sizes, key=lambda n: (not isinstance(sizes[n], Marked), n != "batch_size"))
        yield "batch_size", sizes[usual]


def _argument(call: Call, name: str, index: int) -> ast.expr | None:
    keywords = [keyword.value for keyword in call.node.keywords if keyword.arg == name]
    given = next(iter(keywords), call.node.args[index] if len(call.node.args) > index else None)
    return None if isinstance(given, ast.Starred) else given


def _set_by_user(script: Script, found: Mapping[str, Any]) -> dict[str, Place]:
    """Return the places that the user names, such as "train.py:12" or "--bs"."""
    places = dict[str, Place]()
    for knob, text in script.settings.items():
        value = plain(found.get(knob))
        value = value.value if isinstance(value, Place) else value
        file, _, line = text.rpartition(":")
        if not file or not line.isdecimal():
            places[knob] = Place(value, option=text, name=knob)
            continue
        known = [each for each in texts if each.endswith(file)]
        there = [place for each in known for place in places_at(each, int(line))]
        if not there:
            raise UsageError(f"nothing at {text} gives a value to something named like a knob")
        outer = there[-1]
        places[knob] = Place(value, outer.file, outer.span, outer.template, outer.name)
    return places


def _by_name(size: Any, where: str) -> Place:
    """Return the only place of the user's files that is named like a batch size and has this value."""
    if size is None:
        raise UsageError(
            f"the batch size of fit ({where}) is not known; name the line or the option that sets "
            "it: --set batch_size=FILE:LINE or --set batch_size=--OPTION"
        )
    same = list[Place]()
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = [getattr(target, "id", "") for target in node.targets]
                if node.value.value == size and any(map(_BATCH.search, names)):
                    v = node.value
                    span = (v.lineno, v.col_offset, v.end_lineno or 0, v.end_col_offset or 0)
                    same.append(Place(int(size), file, span, name=names[0]))
    if len(same) == 1:
        return same[0]
    lines = f"; {' and '.join(map(str, same))} have this value" if same else ""
    raise UsageError(
        f"the batch size {size} of fit ({where}) is set by nothing that autofit can edit{lines}; "
        "name the line or the option: --set batch_size=FILE:LINE or --set batch_size=--OPTION"
    )


def uses_of(place: Place) -> list[str]:
    """Return where else the user's files compute with a place's value, as "train.py:40: steps = n
    // batch".
    """
    lines = []
    for used, _, file, line in uses:
        if used.span == place.span and used.file == place.file and file in texts:
            code = texts[file].splitlines()[line - 1].strip()
            lines.append(f"{Path(file).name}:{line}: {code}")
    return list(dict.fromkeys(lines))


def divides(place: Place) -> bool:
    """Return whether the user's files divide by a place's value, as for the steps of an epoch."""
    return any(used.span == place.span and sign in _DIVISIONS for used, sign, _, _ in uses)
