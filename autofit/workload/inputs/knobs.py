"""The knobs of the user's data: parameters of a factory, or attributes of an object."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from autofit.errors import UsageError
from autofit.records.knobs import DATA_KNOBS, KNOBS, PERSISTENT, PROCESSES
from autofit.records.trial import AUTOTUNE, KERAS_DEFAULTS, FitConfig
from autofit.workload.inputs.batch import is_array, leaves
from autofit.workload.reference import Reference

NO_AUTOTUNE = "only a factory of a tf.data.Dataset takes -1 (tf.data.AUTOTUNE); give a number"
PREFETCH_FACTOR = 2  # the default `prefetch_factor` of a torch DataLoader with workers


def _has_base(value: Any, package: str | tuple[str, ...], names: tuple[str, ...]) -> bool:
    # by the names of the classes, because this process must not import the libraries
    return any(base.__name__ in names and base.__module__.startswith(package) for base in type(value).__mro__)


is_model = functools.partial(_has_base, package=("keras.", "tf_keras."), names=("Model",))  # of Keras 3, or of Keras 2
is_pydataset = functools.partial(_has_base, package="keras", names=("PyDataset",))
is_tfdata = functools.partial(_has_base, package="tensorflow.python.data", names=("DatasetV2",))
is_torch_loader = functools.partial(_has_base, package="torch.utils.data", names=("DataLoader",))
is_grain = functools.partial(_has_base, package="grain", names=("MapDataset", "IterDataset", "DataLoader"))
is_grain_map = functools.partial(_has_base, package="grain", names=("MapDataset",))
is_distributed = functools.partial(_has_base, package="tensorflow.python", names=("DistributedDatasetInterface",))

# data whose batch size cannot be set: its kind, and the parameters and the return value of a factory
_READY_MADE: tuple[tuple[Callable[[Any], bool], str, str, str], ...] = (
    (
        is_tfdata,
        "tf.data.Dataset",
        "batch_size, prefetch",
        "tf.data.Dataset.from_tensor_slices(...).batch(batch_size).prefetch(prefetch)",
    ),
    (
        is_torch_loader,
        "torch DataLoader",
        "batch_size, num_workers, prefetch_factor, persistent_workers",
        "DataLoader(dataset, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor, "
        "persistent_workers=persistent_workers)",
    ),
    (is_distributed, "distributed dataset", "batch_size", "dataset.batch(batch_size)  # fit distributes it"),
    (
        is_grain,
        "grain dataset",
        "batch_size, num_threads, prefetch_buffer_size",
        "dataset.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size))",
    ),
    (lambda data: isinstance(data, Iterator), "generator", "batch_size", "my_generator(batch_size)"),
    (is_pydataset, "PyDataset without a writable batch_size", "batch_size, **knobs", "MyDataset(batch_size, **knobs)"),
)


def refuse_unsupported(data: Any) -> None:
    """Refuse a data object that no trial could use, and say how to write a factory for it."""
    if data is None or callable(data) or isinstance(data, Reference):
        return
    if is_pydataset(data) and _can_set(data, "batch_size"):
        return
    for recognises, name, parameters, returned in _READY_MADE:
        if recognises(data):
            raise UsageError(
                f"autofit cannot set the batch size of a ready-made {name}. Pass a function that makes it; the knobs among "
                f"its parameters are tuned:\n\n    def make_data({parameters}):\n        return {returned}\n"
            )
    for part in data if isinstance(data, tuple) else (data,):
        wrong = next((leaf for leaf in leaves(part) if not is_array(leaf)), None)
        if wrong is not None and wrong is part:
            raise unsupported(part)
        if wrong is not None:
            raise UsageError(
                f"the data has a {type(part).__name__} that contains a {type(wrong).__name__}; give arrays: "
                "numpy.array(...) makes one from a list"
            )


def unsupported(data: Any) -> UsageError:
    """Return the error for data of a type that autofit does not take."""
    return UsageError(
        f"the data is a {type(data).__module__}.{type(data).__qualname__}; give arrays x, (x, y) or (x, y, sample_weight), "
        "or a function that returns such arrays, a keras.utils.PyDataset, a tf.data.Dataset, a torch DataLoader, a grain "
        "dataset or a generator"
    )


def _can_set(data: Any, name: str) -> bool:
    try:
        setattr(copy.copy(data), name, getattr(data, name))
    except AttributeError:
        return False
    return True


def knobs_of(data: Any, fixed: Mapping[str, Any]) -> dict[str, str]:
    """Return the knobs that the data takes and that the user does not fix, each with its name in the data.

    A factory takes a knob if it has `**kwargs` or a parameter with one of the knob's names. A PyDataset object takes the
    knobs that are writable attributes; arrays take none. The `data_kwargs` in `fixed` and the keywords of a
    `functools.partial` fix knobs.
    """
    if not callable(data):
        return {knob: knob for knob in DATA_KNOBS if is_pydataset(data) and _can_set(data, knob)}
    given = {*fixed, *(data.keywords if isinstance(data, functools.partial) else ())}
    parameters = inspect.signature(data).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    knobs = {}
    for knob in DATA_KNOBS:
        names = KNOBS[knob].parameters
        by_kwargs = takes_any and knob != "prefetch_factor"  # `**kwargs` are taken to be a PyDataset's, not a DataLoader's
        taken = next((name for name in names if name in named), knob if by_kwargs else None)
        if taken is not None and not given & set(names):
            knobs[knob] = taken
    return knobs


def required_of(data: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are required parameters of a factory; none if the data is not a factory."""
    if not callable(data):
        return ()
    parameters = inspect.signature(data).parameters
    return tuple(name for name in names if name in parameters and parameters[name].default is inspect.Parameter.empty)


def defaults_of(data: Any, names: Mapping[str, str], *, autotunes: bool) -> dict[str, int]:
    """Return the data's own values of its knobs: the defaults of a factory's parameters, or an object's attributes.

    The result omits values that a config cannot have: None, for example, or AUTOTUNE unless `autotunes` is set.
    """
    if callable(data):
        parameters = inspect.signature(data).parameters
        given = {knob: parameters[name].default for knob, name in names.items() if name in parameters}
    else:
        given = {knob: getattr(data, name, None) for knob, name in names.items()}

    def is_value(knob: str, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int) or knob == "use_multiprocessing":
            return knob == "use_multiprocessing" and isinstance(value, bool)
        return value >= KNOBS[knob].lowest or (autotunes and KNOBS[knob].autotunes and value == AUTOTUNE)

    return {knob: value for knob, value in given.items() if is_value(knob, value)}


def with_defaults(config: FitConfig, defaults: Mapping[str, int]) -> FitConfig:
    """Fill the knobs of a config that are None with the data's own values, or else with Keras's defaults."""
    return FitConfig.of({**KERAS_DEFAULTS.values(), **defaults, **config.values()})


def as_written(config: FitConfig, data: Any, names: Mapping[str, str]) -> FitConfig:
    """Fill only the knobs of a config that need a value; a knob that stays None keeps the data's own value."""
    # a factory's required parameters need one, which is 0 for a number of worker processes; and so does the batch size,
    # which is an argument of `fit` for arrays
    required = required_of(data, names.values())
    usual = {"prefetch_factor": PREFETCH_FACTOR, **({"workers": 0} if names.get("workers") == PROCESSES else {})}
    whole = with_defaults(config, {**usual, **defaults_of(data, names, autotunes=False)})
    needed = {"batch_size", *(knob for knob, name in names.items() if name in required)}
    return FitConfig.of({**{knob: value for knob, value in whole.values().items() if knob in needed}, **config.values()})


def arguments_of(names: Mapping[str, str], config: FitConfig) -> dict[str, Any]:
    """Return the arguments that apply a config to a factory; `names` are the factory's names of the knobs that it takes."""
    values: dict[str, Any] = {knob: value for knob, value in config.values().items() if knob in names}
    if "max_queue_size" in values and not config.has_queue:
        values["max_queue_size"] = 1  # Keras itself keeps one batch of tf.data ready
    if "prefetch_factor" in values and not config.has_queue:
        values["prefetch_factor"] = None if names["prefetch_factor"] == "prefetch_factor" else 1  # torch's, or grain's
    if names.get("use_multiprocessing") == PERSISTENT:
        values["use_multiprocessing"] = config.has_queue
    return {names[knob]: value for knob, value in values.items()}
