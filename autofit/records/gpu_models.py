"""GPUs that people use, by name, with what XLA must know of each to compile for it where it is not there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autofit.records.machine import Device

_CONTEXT_BYTES = 500 * 2**20  # CUDA's context, beside the memory of the program (assumed)
_MIB = 2**20

# What all of them have in common, in XLA's format (GpuTargetConfigProto).
_SPEC = """gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  threads_per_core_limit: {threads}
  core_count: {cores}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {block}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  pcie_bandwidth: 34359738368
  ecc_enabled: true
  name: "{name}"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
_SHARED = {  # by compute capability: shared memory of a multiprocessor and of a block in bytes, threads, FP32 units
    (6, 0): (65536, 49152, 2048, 64),
    (7, 0): (98304, 98304, 2048, 64),
    (7, 5): (65536, 65536, 1024, 64),
    (8, 0): (167936, 166912, 2048, 64),
    (8, 6): (102400, 101376, 1536, 128),
    (8, 9): (102400, 101376, 1536, 128),
    (9, 0): (233472, 232448, 2048, 128),
    (10, 0): (233472, 232448, 2048, 128),
    (12, 0): (102400, 101376, 1536, 128),
}  # CUDA C++ Programming Guide, table of technical specifications per compute capability


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU.

    `total_bytes` is its memory as CUDA reports it, less than what nvidia-smi shows. `cores` are multiprocessors,
    `bandwidth` is in GB/s, `l2_mib` in MiB, `clock_ghz` the boost clock. `driver_name` is that of nvidia-smi, `aliases` are
    further ways to write `name`. `count` of them train one model together.
    """

    name: str
    driver_name: str
    total_bytes: int
    capability: tuple[int, int]
    cores: int
    bandwidth: float
    l2_mib: int
    clock_ghz: float
    aliases: tuple[str, ...] = ()
    count: int = 1

    @property
    def label(self) -> str:
        """The name, with the number of GPUs if there are several; `find` takes it."""
        return self.name if self.count == 1 else f"{self.count}x {self.name}"

    @property
    def device(self) -> Device:
        """The GPU as a device on which no other process holds memory."""
        return Device(0, self.name, "", self.total_bytes, self.total_bytes, compute_capability=self.capability)

    def usable_bytes(self, pool_bytes: int | None) -> int:
        """Return the bytes that a program gets: the backend's pool or, if it takes what it needs, all but a context."""
        return min(self.total_bytes - _CONTEXT_BYTES, self.total_bytes if pool_bytes is None else pool_bytes)

    def spec(self) -> str:
        """Return the description of the GPU as XLA's compiler reads it (a GpuTargetConfigProto as text)."""
        shared, block, threads, fpus = _SHARED[self.capability]
        return _SPEC.format(
            shared=shared,
            block=block,
            threads=threads,
            fpus=fpus,
            cores=self.cores,
            bandwidth=round(self.bandwidth * 1e9),
            l2=self.l2_mib * _MIB,
            clock=self.clock_ghz,
            memory=self.total_bytes,
            major=self.capability[0],
            minor=self.capability[1],
            extension="ACCELERATED_FEATURES" if self.capability >= (9, 0) and self.capability[0] < 12 else "NONE",
            name=self.driver_name,
        )


# Sources: XLA's own target configs (P100, V100-16GB, A6000, A100, H100, H200, B200); for the others NVIDIA's data sheets,
# and the totals that CUDA reports in public logs (A10G, L40S, RTX 3060 and 3090). ~: 97.5 % of nvidia-smi's total.
GPUS = (
    GpuModel("T4", "Tesla T4", 15_843_721_216, (7, 5), 40, 320, 4, 1.59),
    GpuModel("P100", "Tesla P100-PCIE-16GB", 17_066_885_120, (6, 0), 56, 732, 4, 1.48, ("P100-16GB",)),
    GpuModel("V100-16GB", "Tesla V100-SXM2-16GB", 16_935_682_048, (7, 0), 80, 898, 6, 1.53, ("V100",)),
    GpuModel("V100-32GB", "Tesla V100-SXM2-32GB", 34_079_637_504, (7, 0), 80, 898, 6, 1.53),  # ~
    GpuModel("A10G", "NVIDIA A10G", 23_684_186_112, (8, 6), 80, 600, 6, 1.71, ("A10",)),
    GpuModel("L4", "NVIDIA L4", 23_549_000_000, (8, 9), 58, 300, 48, 2.04),  # ~
    GpuModel("L40S", "NVIDIA L40S", 47_803_531_264, (8, 9), 142, 864, 96, 2.52),
    GpuModel("A100-40GB", "NVIDIA A100-SXM4-40GB", 42_331_013_120, (8, 0), 108, 1555, 40, 1.41, ("A100",)),
    GpuModel("A100-80GB", "NVIDIA A100-SXM4-80GB", 85_094_825_984, (8, 0), 108, 2039, 40, 1.41, ("A100-PCIE-80GB",)),
    GpuModel("H100", "NVIDIA H100 80GB HBM3", 84_942_979_072, (9, 0), 132, 3352, 50, 1.98, ("H100-80GB", "H100-SXM")),
    GpuModel("H200", "NVIDIA H200", 151_397_597_184, (9, 0), 132, 4800, 50, 1.98, ("H200-141GB",)),
    GpuModel("B200", "NVIDIA B200", 191_514_411_008, (10, 0), 148, 7672, 126, 1.96, ("B200-180GB",)),
    GpuModel("RTX 3060", "NVIDIA GeForce RTX 3060", 12_517_900_288, (8, 6), 28, 360, 2, 1.78),
    GpuModel("RTX 3090", "NVIDIA GeForce RTX 3090", 25_437_405_184, (8, 6), 82, 936, 6, 1.70),
    GpuModel("RTX 4070", "NVIDIA GeForce RTX 4070", 12_556_000_000, (8, 9), 46, 504, 36, 2.48),  # ~
    GpuModel("RTX 4090", "NVIDIA GeForce RTX 4090", 25_113_000_000, (8, 9), 128, 1008, 72, 2.52),  # ~
    GpuModel("RTX 5090", "NVIDIA GeForce RTX 5090", 33_660_665_856, (12, 0), 170, 1792, 96, 2.41),
    GpuModel("RTX A6000", "NVIDIA RTX A6000", 51_041_271_808, (8, 6), 84, 768, 6, 1.80, ("A6000",)),
)
ALL = "all"
_SEVERAL = re.compile(r"\s*([1-9]\d*)\s*[x×]\s*(.+)", re.IGNORECASE)  # 8x A100-40GB


def find(names: Iterable[str]) -> tuple[GpuModel, ...]:
    """Return the GPUs of these names, each once, in the order of `GPUS` for "all"; raise ValueError for an unknown name.

    Names may be those of nvidia-smi; case, spaces, dashes, "NVIDIA", "Tesla" and "GeForce" do not matter. "8x A100-40GB" is
    eight of them.
    """
    known = {_key(written): gpu for gpu in GPUS for written in (*gpu.aliases, gpu.driver_name, gpu.name)}
    found: dict[GpuModel, None] = {}
    for written in names:
        several = _SEVERAL.match(written)
        count, name = (int(several[1]), several[2]) if several else (1, written)
        if name.strip().lower() == ALL:
            found |= {replace(gpu, count=count): None for gpu in GPUS}
            continue
        key = _key(name)
        gpu = known.get(key) or known.get(key.removeprefix("rtx")) or known.get(f"rtx{key}")
        if gpu is None:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            meant = f" (did you mean {known[close[0]].name}?)" if close else ""
            names_known = ", ".join(each.name for each in GPUS)
            raise ValueError(f"no GPU {name!r} is known{meant}. Known GPUs: {names_known}; or all")
        found[replace(gpu, count=count)] = None
    return tuple(found)


def _key(name: str) -> str:
    words = re.sub(r"\b(nvidia|tesla|geforce|gib)\b", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", words)
