"""Results on several devices: the share of a batch on each device, and code that builds a model for all of them."""

from __future__ import annotations

import json
import textwrap

from autofit.backends.jax.backend import variables_for_cpu_devices
from autofit.records.machine import Placement
from autofit.records.result import TuneRecord
from autofit.records.trial import FitConfig
from autofit.records.units import format_rate

IMPORT_TENSORFLOW = "import tensorflow as tf"


def on_each(config: FitConfig, placement: Placement) -> str:
    """The share of a batch on each of several devices; empty for one device."""
    if placement.count == 1 or config.batch_size is None:
        return ""
    share = config.batch_size // placement.count
    return f"batch {config.batch_size} is global: {share} on each of {placement.count} devices"


def shares(record: TuneRecord) -> str:
    """The batch size and the rate of each of several devices; empty for one device."""
    if record.placement.count == 1:
        return ""
    rate = f"{format_rate(record.rate_on_each)} samples/s on each"
    return "; ".join(part for part in (on_each(record.config, record.placement), rate) if part)


def environment_lines(record: TuneRecord) -> list[str]:
    """Lines that must precede all imports, because JAX splits a CPU into devices when it is loaded."""
    placement = record.placement
    if not _is_jax(record) or placement.gpus or placement.count == 1:
        return []
    variables = variables_for_cpu_devices(placement.count)
    return ["import os", *(f'os.environ["{name}"] = "{value}"' for name, value in variables.items())]


def imports(record: TuneRecord) -> list[str]:
    """The imports that `model_lines` need."""
    if record.placement.count == 1:
        return []
    if _is_jax(record):
        return ["import keras"] if record.call_source.distribution else []
    return [IMPORT_TENSORFLOW] if record.call_source.distribution or not record.placement.gpus else []


def model_lines(record: TuneRecord, assignment: str) -> list[str]:
    """Lines that build the model, for all devices if there are several.

    Args:
        record: the result.
        assignment: the line that builds the model for one device, or for several if `build_model` distributes it itself.
    """
    placement = record.placement
    if placement.count == 1:
        return [assignment]
    lines = []
    if not _is_jax(record) and not placement.gpus:
        lines += [
            'cpu = tf.config.list_physical_devices("CPU")[0]',
            f"parts = [tf.config.LogicalDeviceConfiguration()] * {placement.count}",
            "tf.config.set_logical_device_configuration(cpu, parts)",
        ]
    if not record.call_source.distribution:
        return [*lines, assignment]
    names = _names(record)
    if _is_jax(record):
        arguments = f"devices={names}" if names else ""
        lines.append(f"distribution = keras.distribution.DataParallel({arguments})")
        return [*lines, "keras.distribution.set_distribution(distribution)", assignment]
    lines.append(f"strategy = tf.distribute.MirroredStrategy({names})")
    return [*lines, "with strategy.scope():", textwrap.indent(assignment, "    ")]


def _is_jax(record: TuneRecord) -> bool:
    return record.description.versions.get("backend") == "jax"


def _names(record: TuneRecord) -> str:
    """The framework's names of the GPUs as a list in code; empty if it uses all GPUs by default."""
    gpus, uuids = record.placement.gpus, [device.uuid for device in record.machine.devices]
    if len(uuids) <= len(gpus) or not gpus:
        return ""
    kind = "gpu" if _is_jax(record) else "GPU"
    return json.dumps([f"{kind}:{uuids.index(gpu.uuid)}" for gpu in gpus])
