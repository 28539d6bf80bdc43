"""What a script's call of `fit` was given, and where the script sets each knob of it."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import AUTOTUNE, DATA_KNOBS, STEPS_PER_EXECUTION
from autofit.records.places import Edits, Place
from autofit.workload.inputs.arrays import Arrays
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.knobs import has_base, is_pydataset
from autofit.workload.script import Script
from autofit.workload.script.marks import name_of, place_of, places, plain, texts, uses
from autofit.workload.script.run import AfterImport, line_at, users_frame

_BATCH = re.compile(r"batch|(^|_)bs($|_)", re.IGNORECASE)
_KERAS_BATCH = 32  # of `fit`, and of Keras's functions that make a data set
_FOLLOWED = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)  # by a method
_NOTED = "_autofit_noted"  # an attribute of datasets and loaders: places by knob
_ATTRIBUTES = ("workers", "max_queue_size", "use_multiprocessing")  # of a PyDataset
# the parameters that set knobs, of methods of tf.data and of a loader's constructor
_OF_BATCH = {"batch_size": "batch_size"}
_OF_TFDATA = {
    "batch": _OF_BATCH,
    "padded_batch": _OF_BATCH,
    "ragged_batch": _OF_BATCH,
    "prefetch": {"max_queue_size": "buffer_size"},
    "map": {"workers": "num_parallel_calls"},
}
_OF_LOADER = {
    **_OF_BATCH,
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
}


@dataclass(frozen=True)
class Call:
    """A call of the user's file, in the tree of that."""

    file: str
    tree: ast.Module
    node: ast.Call

    def with_keyword(self, name: str, value: Any) -> Place | None:
        """Return the place of a keyword argument that the call lacks; None if it can have none."""
        line, column = _end_of(self.node)
        before_parenthesis = (line, column - 1)
        named = [keyword.value for keyword in self.node.keywords]
        arguments = [*self.node.args, *named]
        ends = [_end_of(argument) for argument in arguments[-1:]]
        # a last argument may be in parentheses of its own, or have a comma behind it
        positions = [(end, ", ") for end in (*ends, before_parenthesis)]
        for position, comma in (*positions, (before_parenthesis, "")):
            template = f"{comma}{name}={{}}"
            span = (*position, *position)
            place = Place(value, self.file, span, template, name)
            edits = Edits({name: place}, {name: "0"})
            text = edits.apply(self.file, texts[self.file])
            with contextlib.suppress(SyntaxError):
                compile(text, self.file, "exec", dont_inherit=True)
                return place
        return None

    @property
    def data(self) -> ast.expr | None:
        """The data of a call of `fit`; None if it is not written out."""
        for keyword in self.node.keywords:
            if keyword.arg == "x":
                return keyword.value
        if not self.node.args or isinstance(self.node.args[0], ast.Starred):
            return None
        return self.node.args[0]

    def with_keyword_of_data(self, made: type, name: str, value: Any) -> Place | None:
        """Return the place of a keyword argument where the call of `fit` makes its data, of a class
        that passes other arguments to Keras's; None if it does not.
        """
        data = self.data
        if not isinstance(data, ast.Call) or name_of(data.func) != made.__name__:
            return None
        code = inspect.getattr_static(made, "__init__").__code__
        takes_others = code.co_flags & inspect.CO_VARKEYWORDS
        # any call with **kwargs: one that swallows them would end the tune
        passed = {each.opname for each in dis.get_instructions(code)}
        # several keywords need an argument before them
        has_arguments = data.args or data.keywords
        if not takes_others or "CALL_FUNCTION_EX" not in passed or not has_arguments:
            return None
        return Call(self.file, self.tree, data).with_keyword(name, value)

    def with_attribute(
        self, target: ast.expr | None, name: str, value: Any
    ) -> Place | None:
        """Return the place of a line before the statement that sets an attribute; None if it can
        have none.
        """
        # the innermost statement comes last
        *_, statement = (
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and self.node in ast.walk(node)
        )
        lines = texts[self.file].split("\n")
        line = lines[statement.lineno - 1].encode()
        indent = line[: statement.col_offset].decode()
        owner = "" if target is None else ast.unparse(target)
        if indent.strip() or not re.fullmatch(r"[\w.]+", owner):
            return None
        position = (statement.lineno, statement.col_offset)
        template = f"{owner}.{name} = {{}}\n{indent}"
        return Place(value, self.file, (*position, *position), template, name)


def _end_of(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


@dataclass(frozen=True)
class Reached:
    """A call of `fit` of an unchanged script."""

    model: Any
    arguments: Mapping[str, Any]  # of `fit`, by name
    where: str  # such as "train.py:91"
    places: Mapping[str, Place]  # by knob

    @property
    def data(self) -> Any:
        """The data, as `tune` takes it."""
        x = self.arguments.get("x")
        if not Arrays.recognises((x,)):
            return x
        weights = self.arguments.get("sample_weight")
        given = [x, self.arguments.get("y"), weights]
        while len(given) > 1 and given[-1] is None:
            given.pop()
        return tuple(given)


def call_at(frame: FrameType | None) -> Call | None:
    """Return the call of the user's files that a frame is in; None if it is not known."""
    if frame is None:
        return None
    file = frame.f_code.co_filename
    tree = ast.parse(texts[file])
    nodes = ast.walk(tree)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if sys.version_info >= (3, 11):
        positions = [*frame.f_code.co_positions()]
        _, line, _, column = positions[frame.f_lasti // 2]
        found = [call for call in calls if _end_of(call) == (line, column)]
    else:  # Python 3.10 knows the line only
        found = [call for call in calls if call.lineno == frame.f_lineno]
    if len(found) != 1:
        return None
    return Call(file, tree, found[0])


def watch_data(imports: AfterImport) -> None:
    """Have datasets of tf.data and loaders of torch note where what they were made with is set."""
    for method, knobs in _OF_TFDATA.items():
        noting = functools.partial(_noting, knobs)
        imports.wrap("tensorflow", f"data.Dataset.{method}", noting)
    noting = functools.partial(_noting, _OF_LOADER)
    imports.wrap("torch.utils.data", "DataLoader.__init__", noting)


def _noting(knobs: Mapping[str, str], original: Any) -> Any:
    """Return a method that notes the places of `knobs`, by parameter, on what it makes."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        plain_kwargs = {name: plain(value) for name, value in kwargs.items()}
        made = original(self, *map(plain, args), **plain_kwargs)
        noted = self if made is None else made  # by a constructor, or a method
        # what the user calls can be given what it takes, and was not given
        free = signature.parameters.keys() - given.keys()
        frame = sys._getframe(1)
        while frame.f_code.co_filename not in texts and frame.f_back is not None:
            free = {*frame.f_code.co_varnames}
            frame = frame.f_back
        call = call_at(users_frame(frame))
        found = dict[str, Place]()
        for knob, name in knobs.items():
            # what tf.data is not given stays so
            if name in given or hasattr(noted, name):
                value = given.get(name, getattr(noted, name, None))
                added = None
                if call is not None and name in free:
                    added = call.with_keyword(name, value)
                found[knob] = place_of(value, added)
        setattr(noted, _NOTED, found)
        return made

    return method


def look(
    script: Script, model: Any, arguments: Mapping[str, Any], frame: FrameType
) -> Reached:
    """Find where the script sets the knobs of a call of `fit`; raise UsageError if the batch size
    has no place.
    """
    where = line_at(frame)
    # nothing can be added to a call of `fit` that is not the user's
    call = call_at(frame) if frame is users_frame(frame) else None
    if call is not None and name_of(call.node.func) != "fit":
        call = None
    found = _found_in(arguments, call, is_set="batch_size" in script.settings)
    steps = getattr(model, STEPS_PER_EXECUTION, 1)
    line = None
    if call is not None and isinstance(call.node.func, ast.Attribute):
        model_in_text = call.node.func.value
        line = call.with_attribute(model_in_text, STEPS_PER_EXECUTION, steps)
    found[STEPS_PER_EXECUTION] = place_of(steps, line)
    found |= _set_by_user(script, found)
    batch = found.get("batch_size", Place(None))
    if not batch.is_known:
        size = batch.value
        data: Any = arguments.get("x")
        if size is None and is_pydataset(data):
            # its methods may read a constant of the script
            size = length_of(leaves(data[0])[0])
        found["batch_size"] = _by_name(size, where)
    return Reached(
        model,
        arguments={name: plain(value) for name, value in arguments.items()},
        where=where,
        places={knob: place for knob, place in found.items() if place.is_known},
    )


def _found_in(
    arguments: Mapping[str, Any], call: Call | None, *, is_set: bool
) -> dict[str, Place]:
    """Return places of the knobs of the data; `is_set` if the user names the batch size's."""
    x: Any = arguments.get("x")
    if hasattr(x, "element_spec"):
        return _in_tfdata(x, call, is_set=is_set)
    if has_base(x, "torch.utils.data", "DataLoader"):
        return dict(getattr(x, _NOTED, {}))
    if is_pydataset(x):
        found = _batch_among(vars(x))
        for name in _ATTRIBUTES:
            value = getattr(x, name)
            added = None
            if call is not None:
                added = call.with_attribute(call.data, name, value)
                added = added or call.with_keyword_of_data(type(x), name, value)
            found[name] = place_of(value, added)
        return found
    if inspect.isgenerator(x) and x.gi_frame is not None:
        values = x.gi_frame.f_globals
        read = {name: values.get(name) for name in x.gi_code.co_names}
        return _batch_among({**read, **x.gi_frame.f_locals})
    if not Arrays.recognises((x,)):
        return _in_parts(x)
    size = arguments.get("batch_size")
    added = None
    if size is None and call is not None:
        added = call.with_keyword("batch_size", _KERAS_BATCH)
    return {"batch_size": place_of(size, added)}


def _in_tfdata(dataset: Any, call: Call | None, *, is_set: bool) -> dict[str, Place]:
    noted = {knob: [*_nearest(dataset, knob)] for knob in DATA_KNOBS}
    batches = {place for place in noted["batch_size"] if place.is_known}
    if len(batches) > 1 and not is_set:
        lines = sorted(map(str, batches))
        raise UsageError(
            f"two datasets are joined whose batches are set at {' and '.join(lines)}; name the "
            f"place that sets both: --set batch_size={lines[0]}"
        )
    found = {knob: nearest[0] for knob, nearest in noted.items() if nearest}
    # what tf.data chooses itself stays so
    if "workers" in found and found["workers"].value in (None, AUTOTUNE):
        del found["workers"]
    data = None if call is None else call.data
    # a method cannot follow all expressions
    can_follow = isinstance(data, _FOLLOWED)
    if call is not None and can_follow and "max_queue_size" not in found:
        end = _end_of(data)
        # without it, a config has the lowest value
        found["max_queue_size"] = Place(
            value=1,
            file=call.file,
            span=(*end, *end),
            template=".prefetch({})",
            name="prefetch",
        )
    return found


def _nearest(dataset: Any, knob: str) -> Iterator[Place]:
    """Yield the nearest place of a knob of a dataset, or of each of those that it joins."""
    noted: dict[str, Place] = getattr(dataset, _NOTED, {})
    if knob in noted:
        yield noted[knob]
    elif hasattr(dataset, "_inputs"):
        for inner in dataset._inputs():
            yield from _nearest(inner, knob)


def _in_parts(data: Any) -> dict[str, Place]:
    """Return the batch size of the nearest part of a data set or loader of grain."""
    found = _batch_among(getattr(data, "__dict__", {}))
    for name in ("_operations", "_parents"):
        for part in getattr(data, name, ()):
            found = found or _in_parts(part)
    return found


def _batch_among(names: Mapping[str, Any]) -> dict[str, Place]:
    """Return the batch size among named values: marked ints and the usual name come first."""
    sizes = list[tuple[bool, bool, Place]]()
    for name, value in names.items():
        if isinstance(value, int) and not isinstance(value, bool):
            place = place_of(value)
            # an attribute may have another name than what sets it
            if _BATCH.search(place.name or name):
                is_usual = name.lstrip("_") == "batch_size"
                sizes.append((place.is_known, is_usual, place))
    if not sizes:
        return {}
    *_, place = max(sizes, key=lambda size: size[:2])
    return {"batch_size": place}


def _set_by_user(script: Script, found: Mapping[str, Place]) -> dict[str, Place]:
    """Return the places that the user names, such as "train.py:12" or "--bs"."""
    chosen = dict[str, Place]()
    for knob, text in script.settings.items():
        value = found.get(knob, Place(None)).value
        file, _, line = text.rpartition(":")
        if not file or not line.isdecimal():
            chosen[knob] = Place(value, option=text, name=knob)
            continue
        of_file = [place for place in places if place.file.endswith(file)]
        there = [place for place in of_file if place.line == int(line)]
        if not there:
            raise UsageError(
                f"nothing at {text} gives a value to something named like a knob"
            )
        # the outer one of nested ones
        chosen[knob] = replace(there[-1], value=value)
    return chosen


def _by_name(size: Any, where: str) -> Place:
    """Return the only place that is named like a batch size and has this value."""
    remedy = "--set batch_size=FILE:LINE or --set batch_size=--OPTION"
    if size is None:
        raise UsageError(
            f"the batch size of fit ({where}) is not known; name the line or the option that sets "
            f"it: {remedy}"
        )
    of_size = [place for place in places if place.value == size]
    same = [place for place in of_size if _BATCH.search(place.name)]
    if len(same) == 1:
        return same[0]
    lines = f"; {' and '.join(map(str, same))} have this value" if same else ""
    raise UsageError(
        f"the batch size {size} of fit ({where}) is set by nothing that autofit can edit{lines}; "
        f"name the line or the option: {remedy}"
    )


def uses_of(place: Place) -> dict[str, bool]:
    """Return where else the user's files compute with a place's value, as "train.py:40: steps = n
    // batch", and whether they divide there, as for the steps of an epoch.
    """
    found = dict[str, bool]()
    for used, method, file, line in uses:
        if used == place and file in texts:
            lines = texts[file].split("\n")
            use = f"{Path(file).name}:{line}: {lines[line - 1].strip()}"
            found[use] = found.get(use, False) or "div" in method
    return found
