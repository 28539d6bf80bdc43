"""Compile a program for a GPU that is not there: XLA needs only a description of it, no driver and no CUDA.

The packages are those of the extra `gpus`: JAX, its CUDA plugin, and NVIDIA's ptxas. The memory that XLA assigns to a
program compiled in this way was 1 to 4 % below that of a program on the GPU itself (measured by others: ResNet-18). It does
not contain the workspaces of cuDNN, nor what the compiler tries in the first step.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from autofit.errors import UsageError
from autofit.records.description import Footprint
from autofit.records.distribution import install_command
from autofit.records.gpu_models import GpuModel

ERRORS = ("XLA, compiled for the GPU", 0.1, 256 * 2**20)
"""The method of an estimate by compiling, its relative error, and its absolute error in bytes (assumed, for the workspaces
of cuDNN)."""

_COUNTED = ("tensors counted on the CPU", 0.2, 0)  # 1.02 to 1.34 for 90% of the models (measured: as below)
_COUNTED_FACTOR, _COUNTED_BYTES = 1.13, 2 * 2**30  # median of 1,017 timm models on an A100, by nvidia-smi
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def require_compiler() -> None:
    """Raise UsageError if programs cannot be compiled for a GPU here; loads nothing."""
    if sys.platform != "linux":
        raise UsageError("XLA compiles for GPUs on Linux only; on Windows, use WSL2", key="gpu")
    if not any(map(importlib.util.find_spec, _PLUGINS)) or importlib.util.find_spec("jax") is None:
        install = install_command("gpus")
        raise UsageError(f"XLA's compiler for GPUs is missing: {install} (without any GPU, driver or CUDA)", key="gpu")


def devices(gpu: GpuModel, count: int = 1) -> list[Any]:
    """Return the devices of a host with `count` of these GPUs, for which JAX can compile (loads JAX)."""
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # otherwise JAX looks for a real GPU first, and gives up the compiler
    topology = topologies.get_topology_desc(platform="cuda", target_config=gpu.spec(), topology=f"1x1x{count}")
    return list(topology.devices)


def compiled(lowered: Any) -> Any:
    """Compile a program that JAX has lowered for a GPU.

    XLA's own matrix products fail for some sizes if no GPU is there to try tiles on; then cuBLAS computes them.
    """
    try:
        return lowered.compile()
    except Exception:
        return lowered.compile(compiler_options=_WITHOUT_TRITON)


def compiled_bytes(memory: Any) -> tuple[int, int]:
    """Return the bytes of a program's arguments, and of its temporaries with the results that replace no argument."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes), int(max(0, memory.temp_size_in_bytes + results))


def counted(footprint: Footprint) -> Footprint:
    """Return the estimate for a GPU that follows from the tensors of a step, where XLA does not compile it.

    GPUs take 1.13 times the tensors and 2 GiB, for a context, libraries and workspaces (median of 1,017 models).
    """
    parts = {part: round(_COUNTED_FACTOR * size) for part, size in footprint.device_bytes_by_part.items()}
    return Footprint(footprint.batch_size, {**parts, "libraries": _COUNTED_BYTES}, *_COUNTED)


def memory_of_stablehlo(text: str, gpu: GpuModel) -> Any:
    """Return the memory statistics of a StableHLO program, as TensorFlow writes it, compiled for a GPU.

    It uses private names of JAX, because JAX's public functions compile only what JAX has traced.
    """
    (device,) = devices(gpu)
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        copies: list[Any] = []

        def visit(operation: Any) -> Any:
            if operation.name == "mhlo.copy":  # of TensorFlow's dialect, which the compiler does not know
                copies.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for copy in copies:
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.erase()

        def compile_with(flags: Mapping[str, Any]) -> Any:
            options = compiler.get_compile_options(num_replicas=1, num_partitions=1, env_options_overrides={**flags})
            taken = _jax.DeviceList((device,))
            return device.client.compile(module, executable_devices=taken, compile_options=options)

        try:
            program = compile_with({})
        except Exception:  # as in `compiled`
            program = compile_with(_WITHOUT_TRITON)
    return program.get_compiled_memory_stats()
