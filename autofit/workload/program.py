"""What a program has set in Keras and its backend, as lines of Python that set it again in trials and in the snippet.

These are the settings that decide speed and memory in most programs; what else a program sets (XLA's clustering, eager
execution, determinism), it must set in `build_model`. Settings are read only from modules that the program has loaded, and
without changing any state. A program that has not loaded Keras, such as the command line, has none: what the modules of a
YAML file set is in force once a trial imports them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, methodcaller
from typing import Any

import psutil

from autofit.errors import UsageError

_KERAS, _CONTEXT = "keras.src.backend.config", "tensorflow.python.eager.context"
_STATE, _REGISTRY = "keras.src.backend.common.global_state", "keras.src.saving.object_registration"
_KERAS_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "image_data_format": "channels_last"}  # without a keras.json
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class _Setting:
    line: str  # of Python, which sets `{}` to a value
    module: str  # which holds the setting
    read: Callable[[Any], Any]
    default: Any = None


@dataclass(frozen=True)
class Program:
    """What a program has set."""

    lines: tuple[str, ...] = ()  # lines of Python that make the settings
    custom_objects: Mapping[str, Any] = field(default_factory=dict)  # those that `keras.saving` knows by name

    @property
    def decisive(self) -> list[Any]:
        """What a result depends on."""
        return [*self.lines, dict(self.custom_objects)] if self.custom_objects else [*self.lines]

    @property
    def imports(self) -> list[str]:
        packages = dict.fromkeys(line.partition(".")[0] for line in self.lines)
        return ["import tensorflow as tf" if package == "tf" else f"import {package}" for package in packages]

    def apply(self) -> None:
        """Make the settings in this process, except those of a backend that it has not loaded; UsageError if one fails."""
        if self.lines or self.custom_objects:
            import keras  # noqa: F401  # heavy: must stay out of the parent; it loads its backend
        for line in self.lines:
            package = line.partition(".")[0]
            if (module := sys.modules.get("tensorflow" if package == "tf" else package)) is not None:
                try:
                    exec(line, {package: module})
                except Exception as error:
                    raise UsageError(f"your program sets `{line}`, which cannot be set in trials: {error}") from None
        if self.custom_objects:
            registry = importlib.import_module(_REGISTRY)
            registry.GLOBAL_CUSTOM_OBJECTS.update(self.custom_objects)
            registry.GLOBAL_CUSTOM_NAMES.update({made: name for name, made in self.custom_objects.items()})


def _keras(name: str) -> _Setting:
    def read(config: Any) -> Any:
        value = getattr(config, name)()
        return None if value == getattr(config, "_config", {}).get(name, _KERAS_DEFAULTS[name]) else value  # of keras.json

    return _Setting(f"keras.config.set_{name}({{!r}})", _KERAS, read)


def _state(name: str) -> Any:
    """Return an attribute of Keras's global state; its public getters may set it."""
    return sys.modules[_STATE].get_global_attribute(name)


def _dtype_policy(config: Any) -> str | None:
    policy = _state("dtype_policy")
    return None if policy is None or policy.name == config.floatx() else str(policy.name)


def _of_tensorflow(attribute: str) -> Callable[[Any], Any]:
    """Return how to read TensorFlow's context; its public getters would list the devices, and thus start CUDA."""

    def read(module: Any) -> Any:
        context = module.context_safe()  # None if nothing has been set and no operation has run
        return None if context is None else getattr(context, attribute)

    return read


def _threads_of_torch() -> int:
    """Return the number of threads that torch uses by default: OpenMP's or, with MKL, one per physical core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with_mkl = sys.modules["torch"].backends.mkl.is_available()
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() else min(cores, psutil.cpu_count(logical=False) or cores) if with_mkl else cores


def _set_threads(torch: Any) -> int | None:
    count = int(torch.get_num_threads())
    return None if count == _threads_of_torch() else count


_SETTINGS = (
    *(_keras(name) for name in _KERAS_DEFAULTS),
    _Setting("keras.config.set_dtype_policy({!r})", _KERAS, _dtype_policy),
    _Setting("keras.config.enable_flash_attention()", _KERAS, lambda _: _state("flash_attention") or None),
    _Setting("keras.config.disable_flash_attention()", _KERAS, lambda _: _state("flash_attention") is False, False),
    *(
        _Setting(f"tf.config.threading.set_{name}({{!r}})", _CONTEXT, _of_tensorflow(f"_{name}"))
        for name in ("intra_op_parallelism_threads", "inter_op_parallelism_threads")
    ),
    _Setting(
        "tf.config.experimental.enable_tensor_float_32_execution({!r})",
        "tensorflow",
        lambda tf: tf.config.experimental.tensor_float_32_execution_enabled(),
        True,
    ),
    _Setting("jax.config.update('jax_enable_x64', {!r})", "jax", attrgetter("config.jax_enable_x64"), False),
    _Setting(
        "jax.config.update('jax_default_matmul_precision', {!r})", "jax", attrgetter("config.jax_default_matmul_precision")
    ),
    _Setting("torch.set_float32_matmul_precision({!r})", "torch", methodcaller("get_float32_matmul_precision"), "highest"),
    _Setting("torch.set_num_threads({!r})", "torch", _set_threads),
)


def read_program() -> Program:
    """Return what this process has set."""
    lines = []
    for setting in _SETTINGS:
        with contextlib.suppress(AttributeError, KeyError):  # private names, which another version may lack
            module = sys.modules.get(setting.module)
            if module is not None and (value := setting.read(module)) != setting.default:
                lines.append(setting.line.format(value))
    return Program(tuple(lines), _custom_objects())


def _custom_objects() -> dict[str, Any]:
    """Return the objects registered with Keras, or given in a scope, except those of installed packages."""
    registry = sys.modules.get(_REGISTRY)
    if registry is None:
        return {}
    known = {**getattr(registry, "GLOBAL_CUSTOM_OBJECTS", {}), **(_state("custom_objects_scope_dict") or {})}
    return {name: made for name, made in known.items() if not _is_installed(getattr(made, "__module__", None))}


def _is_installed(module: str | None) -> bool:
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return any(folder in file for folder in _INSTALLED)
