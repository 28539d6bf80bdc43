"""What a program has set in Keras and its backend, as lines of Python that set it again in trials
and in the snippet.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from autofit.errors import UsageError
from autofit.records.units import counted
from autofit.workload.own_modules import is_own_module

# by their names in lines
_MODULES = {
    "keras": "keras",
    "tf": "tensorflow",
    "jax": "jax",
    "torch": "torch",
}


@dataclass(frozen=True)
class Program:
    """Settings, and objects that Keras finds by name."""

    lines: tuple[str, ...] = ()  # lines of Python that make the settings
    # those that `keras.saving` knows by name
    custom_objects: Mapping[str, Any] = field(default_factory=dict)

    def apply(self) -> None:
        """Make the settings in this process, except those of a backend that it has not loaded."""
        import keras  # heavy: must stay out of the parent; it loads its backend

        names = _loaded()
        for line in self.lines:
            if names[line.partition(".")[0]] is not None:
                exec(line, names)
        keras.saving.get_custom_objects().update(self.custom_objects)
        for key, made in self.custom_objects.items():
            package, separator, name = key.rpartition(">")
            if separator:
                keras.saving.register_keras_serializable(package, name)(made)


def _loaded() -> dict[str, Any]:
    return {name: sys.modules.get(module) for name, module in _MODULES.items()}


# The settings that decide speed and memory in most programs: how each is read, its default, and the
# line that sets another value. All are read by public functions but TensorFlow's threads: that
# function lists the devices, and thus starts CUDA in the user's program. By default, torch uses a
# thread for each physical core; on a processor where it does not, trials set what it uses. What
# else a program sets (XLA's clustering, eager execution, determinism, a scope of custom objects)
# must be set in `build_model`. A program that has not loaded Keras, such as the command line, has
# set nothing: what the modules of a YAML file set is in force once a trial imports them.
_SETTINGS = (
    ("keras.config.floatx()", "'float32'", "keras.config.set_floatx({!r})"),
    ("keras.config.epsilon()", "1e-07", "keras.config.set_epsilon({!r})"),
    (
        "keras.config.image_data_format()",
        "'channels_last'",
        "keras.config.set_image_data_format({!r})",
    ),
    (
        "keras.config.dtype_policy().name",
        "keras.config.floatx()",
        "keras.config.set_dtype_policy({!r})",
    ),
    (
        "keras.config.is_flash_attention_enabled() is False",
        "False",
        "keras.config.disable_flash_attention()",
    ),
    (
        "context._intra_op_parallelism_threads",
        "None",
        "tf.config.threading.set_intra_op_parallelism_threads({!r})",
    ),
    (
        "context._inter_op_parallelism_threads",
        "None",
        "tf.config.threading.set_inter_op_parallelism_threads({!r})",
    ),
    (
        "tf.config.experimental.tensor_float_32_execution_enabled()",
        "True",
        "tf.config.experimental.enable_tensor_float_32_execution({!r})",
    ),
    ("jax.config.jax_enable_x64", "False", "jax.config.update('jax_enable_x64', {!r})"),
    (
        "jax.config.jax_default_matmul_precision",
        "None",
        "jax.config.update('jax_default_matmul_precision', {!r})",
    ),
    (
        "torch.get_float32_matmul_precision()",
        "'highest'",
        "torch.set_float32_matmul_precision({!r})",
    ),
    ("torch.get_num_threads()", "psutil.cpu_count(logical=False)", "torch.set_num_threads({!r})"),
    # last, because it starts the backend; trials see only the devices of the tune, numbered from 0
    (
        "keras.distribution.distribution() and "
        "keras.distribution.distribution().device_mesh.devices.size",
        "None",
        "keras.distribution.set_distribution("
        "keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:{}]))",
    ),
)


def require_distribution(count: int) -> None:
    """Raise UsageError if this process does not distribute models as trials on the devices do."""
    keras = sys.modules.get("keras")
    distribution = None if keras is None else keras.distribution.distribution()
    if distribution is None:
        return
    name = type(distribution).__name__
    given = f"the program has set a {name} by keras.distribution.set_distribution"
    without = "or call keras.distribution.set_distribution(None) to tune for one device"
    if name != "DataParallel" or distribution.device_mesh.devices.ndim != 1:
        raise UsageError(
            f"{given}, but trials take only a DataParallel over a row of devices; set one, "
            f"{without}"
        )
    devices = distribution.device_mesh.devices
    if devices.size != count:
        kind = devices[0].partition(":")[0]
        raise UsageError(
            f"{given} over {counted(devices.size, 'device')}, but this tune uses {count}; "
            f"give device: {devices.size}x {kind}, {without}",
            key="device",
        )


def read_program() -> Program:
    """Return what this process has set."""
    lines = []
    eager = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(eager, "context_safe", lambda: None)()
    names = {**_loaded(), "context": context, "psutil": psutil}
    for expression, default, line in _SETTINGS:
        # of None if it is not loaded, or of a version that lacks the setting
        with contextlib.suppress(AttributeError):
            if (value := eval(expression, names)) != eval(default, names):
                lines.append(line.format(value))
    objects = names["keras"].saving.get_custom_objects() if names["keras"] else {}
    own = {
        name: made
        for name, made in objects.items()
        if is_own_module(str(getattr(made, "__module__", None)))
    }
    return Program(tuple(lines), own)
