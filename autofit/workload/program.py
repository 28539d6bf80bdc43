"""What a program has set in Keras and its backend, as lines of Python that set it again in trials
and in the snippet.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from autofit.backends import BACKENDS
from autofit.backends.protocol import ProgramSetting
from autofit.errors import UsageError
from autofit.records.units import counted
from autofit.workload.own_modules import is_own_module

# by the names that they give in programs
_IMPORT_LINES = {
    line.split()[-1]: line
    for line in (
        "import keras",
        *(backend.import_line for backend in BACKENDS.values()),
    )
}


@dataclass(frozen=True)
class Program:
    """Settings, and objects that Keras finds by name."""

    lines: tuple[str, ...] = ()  # lines of Python that make the settings
    # those that `keras.saving` knows by name
    custom_objects: Mapping[str, Any] = field(default_factory=dict)

    def imports(self) -> list[str]:
        """Return the lines that import what the settings need."""
        return [_IMPORT_LINES[line.partition(".")[0]] for line in self.lines]

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
    """Return Keras and the backends by their names in lines; None for each that is not loaded."""
    return {
        name: sys.modules.get(line.split()[1]) for name, line in _IMPORT_LINES.items()
    }


# The settings that decide speed and memory in most programs. What else a program sets (XLA's
# clustering, eager execution, determinism, a scope of custom objects) must be set in `build_model`.
# A program that has not loaded Keras, such as the command line, has set nothing: what the modules
# of a YAML file set is in force once a trial imports them.
_SETTINGS = (
    ProgramSetting(
        "keras.config.floatx()", "'float32'", "keras.config.set_floatx({!r})"
    ),
    ProgramSetting("keras.config.epsilon()", "1e-07", "keras.config.set_epsilon({!r})"),
    ProgramSetting(
        "keras.config.image_data_format()",
        "'channels_last'",
        "keras.config.set_image_data_format({!r})",
    ),
    ProgramSetting(
        "keras.config.dtype_policy().name",
        "keras.config.floatx()",
        "keras.config.set_dtype_policy({!r})",
    ),
    ProgramSetting(
        "keras.config.is_flash_attention_enabled() is False",
        "False",
        "keras.config.disable_flash_attention()",
    ),
    *itertools.chain.from_iterable(
        backend.program_settings for backend in BACKENDS.values()
    ),
    # last, because it starts the backend; trials see only the devices of the tune, numbered from 0
    ProgramSetting(
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
    names = {**_loaded(), "psutil": psutil, "sys": sys}
    for setting in _SETTINGS:
        # of what is not loaded, or of a version that lacks the setting
        with contextlib.suppress(AttributeError):
            if (value := eval(setting.value, names)) != eval(setting.default, names):
                lines.append(setting.line.format(value))
    objects = names["keras"].saving.get_custom_objects() if names["keras"] else {}
    own = {
        name: made
        for name, made in objects.items()
        if is_own_module(str(getattr(made, "__module__", None)))
    }
    return Program(tuple(lines), own)
