"""GPUs that need not be there: found by name, and described to XLA, which compiles for them without
a driver or CUDA.

`gpus.yaml` has what XLA must know of each. The packages (JAX, its CUDA plugin, ptxas) are those of
the extra `absent-gpus`.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Template
from typing import Any

import yaml

from autofit.errors import UsageError
from autofit.records import cuda_memory, install_command
from autofit.records.description import Footprint
from autofit.records.machine import Device

# The memory that XLA assigns to a program compiled in this way was 1 to 4 % below that of a program
# on the GPU itself (measured by others: ResNet-18). It does not contain the workspaces of cuDNN,
# nor what the compiler tries in the first step.

# method of an estimate by compiling, its relative error, and its absolute error in bytes
ERRORS = ("XLA, compiled for the GPU", 0.1, cuda_memory.WORKSPACE_BYTES)
# 1.02 to 1.34 for 90% of the models (measured: as below)
_COUNTED = "tensors counted on the CPU", 0.2, cuda_memory.WORKSPACE_BYTES
# median of 1,017 timm models on an A100; nvidia-smi also showed 2 GiB for context and libraries,
# which lie outside what an allocator counts
_COUNTED_FACTOR = 1.13
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def find(names: Iterable[str]) -> tuple[Device, ...]:
    """Return the GPUs of these names, each once, or every known one for "all"; raise UsageError for
    an unknown name.
    """
    known: dict[str, Device] = {}
    for name, row in _table()["models"].items():
        gpu = Device(
            0,
            name,
            "",
            row["memory"],
            row["memory"],
            compute_capability=(row["major"], row["minor"]),
        )
        known |= {
            _key(written): gpu
            for written in (name, row["driver"], *row.get("aliases", ()))
        }
    found: list[Device] = []
    for name in names:
        key = _key(name)
        if key not in (*known, "all"):
            raise UsageError(
                f"no GPU {name!r} is known. Known GPUs: {', '.join(_table()['models'])}; or all",
                key="gpu",
            )
        found += known.values() if key == "all" else [known[key]]
    return tuple(dict.fromkeys(found))


def known_of(name: str) -> str:
    """Return how far autofit's figures for a model of GPU were compared with others, by its name in
    nvidia-smi.
    """
    try:
        (gpu,) = find([name])
    except UsageError:
        return "trials measure it; only estimate --gpu does not know it"
    return str(_table()["known"][_table()["models"][gpu.name].get("known", "compiled")])


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8")
    )
    return table


def _key(name: str) -> str:  # names may be those of nvidia-smi
    return re.sub(r"\b(nvidia|tesla|geforce)\b|[^a-z0-9]", "", name.lower())


def require_compiler() -> None:
    """Raise UsageError if programs cannot be compiled for a GPU here; loads nothing."""
    if importlib.util.find_spec("jax") is None or not any(
        map(importlib.util.find_spec, _PLUGINS)
    ):
        raise UsageError(
            f"XLA's compiler for GPUs is missing: {install_command('absent-gpus')} (Linux or WSL2; "
            "without any GPU, "
            "driver or CUDA)",
            key="gpu",
        )


def target_of(gpu: Device) -> Any:
    """Return a GPU of the table as a device for which JAX can compile (loads JAX)."""
    import jax
    from jax.experimental import topologies

    # otherwise JAX looks for a real GPU first, and gives up the compiler
    jax.config.update("jax_platforms", "cpu")
    row = _table()["models"][gpu.name]
    units = {"bandwidth": row["bandwidth"] * 10**9, "l2": row["l2"] * 2**20}
    # the text of a GpuTargetConfigProto
    spec = Template(_table()["target"]).substitute(row, **units)
    return topologies.get_topology_desc(
        platform="cuda", target_config=spec, topology="1x1x1"
    ).devices[0]


def compiled(compile_with: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the program that `compile_with` makes with options of the compiler."""
    try:
        return compile_with({})
    except Exception:
        # XLA's own matrix products fail for some sizes if no GPU is there to try tiles on; then
        # cuBLAS computes them
        return compile_with(_WITHOUT_TRITON)


def compiled_bytes(memory: Any) -> tuple[int, int]:
    """Return the bytes of a program's arguments, and of its temporaries with the results that
    replace no argument.
    """
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes), int(
        max(0, memory.temp_size_in_bytes + results)
    )


def counted(footprint: Footprint) -> Footprint:
    """Return the estimate for a GPU that follows from the tensors of a step, where XLA does not
    compile it.
    """
    parts = {
        part: round(_COUNTED_FACTOR * size)
        for part, size in footprint.device_bytes_by_part.items()
    }
    return Footprint(footprint.batch_size, parts, *_COUNTED)


def memory_of_stablehlo(text: str, gpu: Device) -> Any:
    """Return the memory statistics of a StableHLO program, as TensorFlow writes it, compiled for a
    GPU.
    """
    target = target_of(gpu)
    # private names of JAX, because its public functions compile only what it has traced
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    def compile_with(flags: dict[str, Any]) -> Any:
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, env_options_overrides=flags
        )
        return target.client.compile(
            module,
            executable_devices=_jax.DeviceList((target,)),
            compile_options=options,
        )

    with mlir.make_ir_context():
        # the compiler does not know TensorFlow's copy; reshaping to the same shape takes no memory
        # either
        module = ir.Module.parse(
            re.sub(
                r"mhlo\.copy (.+?) : (\S+)", r"stablehlo.reshape \1 : (\2) -> \2", text
            )
        )
        return compiled(compile_with).get_compiled_memory_stats()
