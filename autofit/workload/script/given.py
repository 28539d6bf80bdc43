"""The workload of a script's call of `fit`: a function that returns its model, and a factory of its
data.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from autofit.errors import UsageError
from autofit.records.knobs import DATA_KNOBS, FitConfig
from autofit.records.places import Edits, Place
from autofit.workload import fit_options
from autofit.workload.inputs.batch import leaves, length_of
from autofit.workload.inputs.fit_input import FitInput
from autofit.workload.inputs.kinds import recognise
from autofit.workload.inputs.knobs import arguments_of
from autofit.workload.program import Program
from autofit.workload.script import Script
from autofit.workload.script.reached import Reached
from autofit.workload.workload import Workload

_FILE = "places.json"
_PLACES = TypeAdapter(dict[str, Place])
# arguments of `fit` that the data takes the place of
_OF_DATA = ("x", "y", "sample_weight", "batch_size", "validation_data")


class GivenData:
    """The data that a script gave to `fit`, as a factory whose parameters are the knobs that the
    script sets.
    """

    def __init__(
        self, data: Any, values: Mapping[str, Any], call: Reached | None = None
    ) -> None:
        self._data = data
        self._call = call  # of `fit`; None for validation data
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in values.items()
        ]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, **_: Any) -> Any:
        """Return the data; the script has been edited to make it so."""
        return self._data

    def require_asked(self, asked: int | None, made: FitInput) -> None:
        """Raise UsageError if the batches that arrive at `fit` do not follow the edit that asked
        for a size.
        """
        if self._call is None or asked is None:
            return
        place = self._call.places["batch_size"]
        arrived = self._call.arguments.get("batch_size")
        if not arrived:
            arrived = length_of(leaves(made.batch())[0])
        # a batch of all samples may be smaller
        if arrived > asked or (arrived != asked and arrived == place.value):
            raise UsageError(
                f"{place}: changing it does not change the batch of fit ({self._call.where}), "
                f"which stays {arrived}; name the line that does: --set batch_size=FILE:LINE"
            )


def workload_of(script: Script, reached: Reached) -> Workload:
    """Return the workload of a call of `fit`; raise UsageError for arguments that trials cannot
    take.
    """
    kind = recognise(reached.arguments.get("x"))
    # what such data calls the knobs
    names = {} if kind is None else kind.own_names
    values = {
        names.get(knob, knob): reached.places[knob].value
        for knob in DATA_KNOBS
        if knob in reached.places
    }
    options = {
        name: value
        for name, value in reached.arguments.items()
        if name not in _OF_DATA and value is not None
    }
    validation = reached.arguments.get("validation_data")
    if validation is not None:
        options.pop(fit_options.VALIDATION_SPLIT, None)
        is_arrays = isinstance(validation, list | tuple)
        validation = tuple(validation) if is_arrays else GivenData(validation, {})
    return Workload(
        build_model=lambda: reached.model,
        data=GivenData(reached.data, values, reached),
        validation=validation,
        fit_kwargs=options,
        program=Program(),
        script=script,
    )


def save_places(folder: Path, places: Mapping[str, Place]) -> None:
    """Write the places to the folder of a launcher, for the trials that follow."""
    text = _PLACES.dump_json(dict(places))
    (folder / _FILE).write_bytes(text)


def places_in(folder: Path) -> dict[str, Place]:
    """Return the places that an earlier trial found; none in the first."""
    file = folder / _FILE
    if not file.exists():
        return {}
    return _PLACES.validate_json(file.read_bytes())


def edits_for(places: Mapping[str, Place], config: FitConfig) -> Edits:
    """Return the edits that set a config."""
    values = arguments_of({knob: knob for knob in places}, config)
    if not config.has_queue:  # Keras makes none, whatever its length
        values.pop("max_queue_size", None)
    return Edits(places, values)
