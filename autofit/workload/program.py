"""Settings of Keras and its backend: read in the program that calls autofit, and applied in its trials.

They are read only from modules that the program has loaded. A program that has not loaded Keras, such as the command line,
has none: what the modules of a YAML file set is in force once a trial imports them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from autofit.errors import UsageError

_KERAS, _TENSORFLOW, _JAX, _TORCH = "keras.src.backend.config", "tensorflow", "jax", "torch"
_STATE, _CONTEXT = "keras.src.backend.common.global_state", "tensorflow.python.eager.context"
_KERAS_DEFAULTS = {"floatx": "float32", "epsilon": 1e-07, "image_data_format": "channels_last"}  # without a keras.json


@dataclass(frozen=True)
class _Setting:
    """A setting of a module: functions that read it, without changing any state, and apply it; and its default."""

    module: str
    read: Callable[[Any], Any]
    apply: Callable[[Any, Any], object]
    default: Any = None


def _keras_default(config: Any, name: str) -> Any:
    return getattr(config, "_config", {}).get(name, _KERAS_DEFAULTS[name])  # `_config` is what Keras read from keras.json


def _of_keras(name: str) -> _Setting:
    def read(config: Any) -> Any:
        value = getattr(config, name)()
        return None if value == _keras_default(config, name) else value

    return _Setting(_KERAS, read, lambda config, value: getattr(config, f"set_{name}")(value))


def _of_tensorflow(attribute: str, apply: Callable[[Any, Any], object]) -> _Setting:
    """Return a setting of TensorFlow's context; its public getter would list the devices, and thus start CUDA."""
    return _Setting(_TENSORFLOW, lambda _: getattr(sys.modules[_CONTEXT].context_safe(), attribute, None), apply)


def _of_jax(name: str, default: Any) -> _Setting:
    return _Setting(_JAX, lambda jax: getattr(jax.config, name), lambda jax, value: jax.config.update(name, value), default)


def _attribute(name: str) -> Any:
    """Return an attribute of Keras's global state; its public getters may set it."""
    return sys.modules[_STATE].get_global_attribute(name)


def _dtype_policy(config: Any) -> Any:
    """Return the default dtype policy as JSON; None if it follows `floatx`."""
    policy = _attribute("dtype_policy")
    follows = policy is None or policy.name == config.floatx()
    return None if follows else sys.modules["keras"].dtype_policies.serialize(policy)


def _apply_dtype_policy(config: Any, policy: Any) -> None:
    keras = sys.modules["keras"]
    keras.config.set_dtype_policy(keras.dtype_policies.deserialize(policy))


_SETTINGS: dict[str, _Setting] = {
    **{f"keras.{name}": _of_keras(name) for name in _KERAS_DEFAULTS},
    "keras.dtype_policy": _Setting(_KERAS, _dtype_policy, _apply_dtype_policy),
    "keras.flash_attention": _Setting(
        _KERAS,
        lambda _: _attribute("flash_attention"),
        lambda config, is_on: (config.enable_flash_attention if is_on else config.disable_flash_attention)(),
    ),
    "tensorflow.intra_op_threads": _of_tensorflow(
        "_intra_op_parallelism_threads", lambda tf, count: tf.config.threading.set_intra_op_parallelism_threads(count)
    ),
    "tensorflow.inter_op_threads": _of_tensorflow(
        "_inter_op_parallelism_threads", lambda tf, count: tf.config.threading.set_inter_op_parallelism_threads(count)
    ),
    "tensorflow.jit": _of_tensorflow(
        "_optimizer_jit", lambda tf, is_on: tf.config.optimizer.set_jit("autoclustering" if is_on else False)
    ),
    "tensorflow.tensor_float_32": _Setting(
        _TENSORFLOW,
        lambda tf: tf.config.experimental.tensor_float_32_execution_enabled(),
        lambda tf, is_on: tf.config.experimental.enable_tensor_float_32_execution(is_on),
        default=True,
    ),
    "jax.enable_x64": _of_jax("jax_enable_x64", False),
    "jax.default_matmul_precision": _of_jax("jax_default_matmul_precision", None),
    "torch.default_dtype": _Setting(
        _TORCH,
        lambda torch: str(torch.get_default_dtype()).partition(".")[2],
        lambda torch, name: torch.set_default_dtype(getattr(torch, name)),
        default="float32",
    ),
    "torch.float32_matmul_precision": _Setting(
        _TORCH,
        methodcaller("get_float32_matmul_precision"),
        lambda torch, precision: torch.set_float32_matmul_precision(precision),
        default="highest",
    ),
}


def read_settings() -> dict[str, Any]:
    """Return the settings of this process that differ from the defaults, as JSON values by name."""
    settings = {}
    for name, setting in _SETTINGS.items():
        with contextlib.suppress(AttributeError, KeyError):  # private names, which another version may lack
            module = sys.modules.get(setting.module)
            if module is not None and (value := setting.read(module)) != setting.default:
                settings[name] = value
    return settings


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Apply the settings of another process to this one, except those of a backend that this process has not loaded.

    Raises:
        UsageError: a setting cannot be applied here.
    """
    if settings:
        import keras  # noqa: F401  # heavy: must stay out of the parent; it loads its backend
    for name, value in settings.items():
        module = sys.modules.get(_SETTINGS[name].module)
        if module is not None:
            try:
                _SETTINGS[name].apply(module, value)
            except Exception as error:
                raise UsageError(f"{name} is {value!r} in your program, and cannot be set in trials: {error}") from None
