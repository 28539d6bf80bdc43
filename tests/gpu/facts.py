"""Facts of a GPU machine that reading could not settle, on JAX and torch (no TensorFlow): one line of JSON each.

    python tests/gpu/facts.py [--only a,b] [--minutes 8] [--out FOLDER]    # in the repository root

Each fact runs in a process of its own (`--fact NAME ARGUMENTS`), with a limit; nothing here imports autofit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path.cwd()
GIB, MIB = 2**30, 2**20


def nvml():
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)


def used():
    p, h = nvml()
    return p.nvmlDeviceGetMemoryInfo(h).used


def nvidia_files():
    links = {os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()}
    return sorted(link for link in links if "nvidia" in link)


def meminfo():
    return Path("/proc/meminfo").read_text().splitlines()


def host_memory():
    def sizes(name):
        try:
            lines = Path(f"/proc/self/{name}").read_text().splitlines()
        except OSError as error:
            return {"unreadable": str(error)}
        return {
            line.split(":")[0]: int(line.split()[1]) // 1024
            for line in lines
            if line.strip().endswith("kB") and len(line.split()) == 3
        }

    rollup, status = sizes("smaps_rollup"), sizes("status")
    keys = ("Rss", "Pss", "Pss_Anon", "Pss_File", "Pss_Shmem", "unreadable")
    available = [int(line.split()[1]) // 1024 for line in meminfo() if line.startswith("MemAvailable")]
    return {**{k: rollup[k] for k in keys if k in rollup}, "VmHWM": status.get("VmHWM"), "MemAvailable": available[0]}


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def machine():
    """NVML against CUDA: total, free, reserved; time of NVML; RAM"""
    p, h = nvml()
    v1 = p.nvmlDeviceGetMemoryInfo(h)
    got = {
        "driver": str(p.nvmlSystemGetDriverVersion()),
        "name": str(p.nvmlDeviceGetName(h)),
        "uuid": str(p.nvmlDeviceGetUUID(h)),
    }
    got["nvml v1, MiB"] = [x // MIB for x in (v1.total, v1.used, v1.free)]
    try:
        v2 = p.nvmlDeviceGetMemoryInfo(h, version=p.nvmlMemory_v2)
        got["nvml v2 (total, reserved, used, free), MiB"] = [x // MIB for x in (v2.total, v2.reserved, v2.used, v2.free)]
    except Exception as error:
        got["nvml v2"] = repr(error)
    got["persistence"] = p.nvmlDeviceGetPersistenceMode(h)
    p.nvmlShutdown()
    began = time.perf_counter()
    for _ in range(20):
        p.nvmlInit(), p.nvmlShutdown()
    got["nvml init + shutdown, ms"] = round((time.perf_counter() - began) / 20 * 1000, 2)
    import torch

    free, total = torch.cuda.mem_get_info()
    got["cuda (total, free), MiB"] = [total // MIB, free // MIB]
    got["cuda total / nvml total"] = round(total / v1.total, 5)
    got["meminfo"] = [line for line in meminfo() if line.split(":")[0] in ("MemTotal", "MemAvailable", "SwapTotal")]
    got["shm"] = subprocess.check_output(["df", "-k", "/dev/shm"], text=True).splitlines()[-1:]
    p, h = nvml()
    held = [
        (x.pid, None if x.usedGpuMemory is None else x.usedGpuMemory // MIB)
        for x in p.nvmlDeviceGetComputeRunningProcesses(h)
    ]
    got["own pid, and the processes that NVML names"] = [os.getpid(), held]
    return got


def fork():
    """whether import keras opens CUDA, and whether a fork of that process can then use the GPU"""
    began = time.perf_counter()
    import keras

    got = {"backend": keras.backend.backend(), "import, s": round(time.perf_counter() - began, 2), "opened": nvidia_files()}
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            value = keras.ops.convert_to_numpy(keras.ops.sum(keras.ops.ones((64, 64)) @ keras.ops.ones((64, 64))))
            text = f"ok {float(value)}"
            if keras.backend.backend() == "torch":
                import torch

                torch.cuda.set_per_process_memory_fraction(0.5)
                text += f" on {torch.cuda.get_device_name()}"
            else:
                import jax

                text += f" on {jax.devices()[0]}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:300]
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    got["child"] = os.read(read, 1000).decode()
    os.wait()
    return got


def beside():
    """JAX: limit and pool of a fraction of NVML's total for 4 GiB; what is taken beside the pool, MiB"""
    p, h = nvml()
    total, before = p.nvmlDeviceGetMemoryInfo(h).total, p.nvmlDeviceGetMemoryInfo(h).used
    os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{4 * GIB / total:.6f}"
    import jax
    import jax.numpy as jnp
    import keras

    began = time.perf_counter()
    x = jax.block_until_ready(jnp.ones((512, 512)))
    got, beside_mib = {"first operation, s": round(time.perf_counter() - began, 2)}, {}
    stats = jax.devices()[0].memory_stats()
    got["stats"] = stats
    got["bytes_limit / asked"] = round(stats["bytes_limit"] / (4 * GIB), 4)

    def note(name):
        beside_mib[name] = (p.nvmlDeviceGetMemoryInfo(h).used - before - stats["bytes_limit"]) // MIB

    note("add")
    jax.block_until_ready(x @ x), note("product")
    image, kernel = jnp.ones((8, 64, 64, 8)), jnp.ones((3, 3, 8, 8))

    def convolved(image, kernel):
        return keras.ops.conv(image, kernel, padding="same").sum()

    jax.block_until_ready(jax.jit(jax.grad(convolved))(image, kernel)), note("convolution")
    jax.block_until_ready(keras.layers.LSTM(64)(jnp.ones((8, 32, 16)))), note("LSTM")
    return {**got, "beside the pool, MiB": beside_mib}


def peaks(model="convolutions", batch="256", fraction="0.3"):
    """JAX: peak after compiling alone (autotuning), after steps, by XLA's buffers; with a cold and a warm cache"""
    os.environ["XLA_CLIENT_MEM_FRACTION"] = fraction
    sys.path.insert(0, str(ROOT))
    import jax
    import keras
    import numpy as np

    from tests.gpu import jobs

    batch = int(batch)
    pixels = {"residual": 224}.get(model, 64)
    made = getattr(jobs, model)(pixels=pixels) if model in ("convolutions", "residual") else getattr(jobs, model)()
    x = np.ones((batch, *made.input_shape[1:]), "float32")
    y = np.zeros((batch, 1), "float32")
    made._symbolic_build(data_batch=(x, y))
    device, hits = jax.devices()[0], []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.rsplit("/", 1)[-1]))

    def stats():
        s = device.memory_stats()
        return [s["bytes_in_use"] // MIB, s["peak_bytes_in_use"] // MIB]

    got = {"model": model, "batch": batch, "in use and peak, MiB: built": stats()}
    state = made._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state, (x, y)))
    began = time.perf_counter()
    compiled = jax.jit(made.train_step, donate_argnums=0).lower(*shapes).compile()
    got["compile, s"] = round(time.perf_counter() - began, 1)
    got["compiled"] = stats()
    m = compiled.memory_analysis()
    parts = (m.argument_size_in_bytes, m.temp_size_in_bytes, m.output_size_in_bytes, m.alias_size_in_bytes)
    got["argument, temp, output, alias, MiB"] = [size // MIB for size in parts]
    got["XLA: arguments + temp + output - alias + one batch, MiB"] = (sum(parts[:3]) - parts[3] + x.nbytes) // MIB
    after = {}

    class Notes(keras.callbacks.Callback):
        def on_train_batch_begin(self, step, logs=None):
            if step in (3, 10, 60):
                after[f"step {step}"] = stats()

    made.fit(
        np.repeat(x[:1], 64 * batch, 0) if batch * 64 * x[0].nbytes < 4 * GIB else x,
        np.zeros((64 * batch, 1), "float32") if batch * 64 * x[0].nbytes < 4 * GIB else y,
        batch_size=batch,
        epochs=1,
        verbose=0,
        callbacks=[Notes()],
    )
    got["fit"] = after or stats()
    got["end"] = stats()
    got["cache events"] = {name: hits.count(name) for name in sorted(set(hits)) if "cache" in name}
    got["host, MiB"] = host_memory()
    return got


def pile():
    """JAX: memory of batches that are put on the device and used by no step, as when the input pipeline runs alone"""
    os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.5"
    import jax
    import numpy as np

    batch = np.ones((32 * MIB // 4,), "float32")
    jax.block_until_ready(jax.device_put(batch))
    device, before, began = jax.devices()[0], host_memory(), time.perf_counter()
    for _ in range(300):
        jax.device_put(batch)
    dispatched = time.perf_counter() - began
    peak = device.memory_stats()["peak_bytes_in_use"] // (32 * MIB)
    jax.block_until_ready(jax.device_put(batch))
    whole = time.perf_counter() - began
    return {
        "300 batches of 32 MiB: dispatched, s": round(dispatched, 3),
        "copied, s": round(whole, 3),
        "peak, batches": peak,
        "GB/s": round(300 * 32 * MIB / whole / 1e9, 1),
        "host before, MiB": before,
        "host after, MiB": host_memory(),
    }


def torch_oom(model="convolutions", benchmark="0"):
    """torch under 1 GiB: peaks by batch, and what is raised when it runs out: type, text, num_ooms, retries"""
    sys.path.insert(0, str(ROOT))
    import numpy as np
    import torch

    from tests.gpu import jobs

    torch.backends.cudnn.benchmark = benchmark == "1"
    total = nvml()[0].nvmlDeviceGetMemoryInfo(nvml()[1]).total
    before = used()
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    made = getattr(jobs, model)(pixels=64) if model == "convolutions" else getattr(jobs, model)()
    rows, batch = [], 16
    while batch <= 2**17:
        x, y = np.ones((batch, *made.input_shape[1:]), "float32"), np.zeros((batch, 1), "float32")
        torch.cuda.reset_peak_memory_stats()
        try:
            made.fit(x, y, batch_size=batch, epochs=3, verbose=0)
        except BaseException as error:
            s = torch.cuda.memory_stats()
            return {
                "model": model,
                "benchmark": benchmark,
                "batch, allocated and reserved peak, MiB; retries, ooms": rows,
                "failed at": batch,
                "raised": f"{type(error).__name__}: {error}"[:400],
                "allocated, reserved then, MiB": [
                    torch.cuda.max_memory_allocated() // MIB,
                    torch.cuda.max_memory_reserved() // MIB,
                ],
                "num_ooms": s.get("num_ooms"),
                "retries": s.get("num_alloc_retries"),
                "driver - reserved, MiB": (used() - before - torch.cuda.memory_reserved()) // MIB,
            }
        s = torch.cuda.memory_stats()
        rows.append(
            [
                batch,
                torch.cuda.max_memory_allocated() // MIB,
                torch.cuda.max_memory_reserved() // MIB,
                s.get("num_alloc_retries"),
                s.get("num_ooms"),
            ]
        )
        batch *= 2
    return {"model": model, "rows": rows, "failed at": None}


def clock():
    """seconds from idle until a product runs at 98 % of its last rate; the clock meanwhile"""
    import torch

    p, h = nvml()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    time.sleep(8)
    began, rows = time.perf_counter(), []
    while time.perf_counter() - began < 5:
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < 0.1:
            a @ a
            torch.cuda.synchronize()
            n += 1
        rows.append(
            (round(start - began, 2), n / (time.perf_counter() - start), p.nvmlDeviceGetClockInfo(h, p.NVML_CLOCK_SM))
        )
    last = sum(r[1] for r in rows[-10:]) / 10
    when = next((r[0] for i, r in enumerate(rows) if all(q[1] > 0.98 * last for q in rows[i : i + 5])), None)
    return {
        "steady after, s": when,
        "products/s and MHz at the beginning": [(r[0], round(r[1]), r[2]) for r in rows[:12]],
        "last": round(last),
        "last MHz": rows[-1][2],
    }


def spin():
    """CPU seconds that a thread takes while it waits two seconds for the GPU: torch events, JAX"""
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    got = {}
    for blocking in (False, True):
        event = torch.cuda.Event(blocking=blocking)
        for _ in range(1400):
            torch.mm(a, a, out=None)
        event.record()
        began, cpu = time.perf_counter(), time.thread_time()
        event.synchronize()
        got[f"torch, blocking={blocking}: waited, CPU, s"] = [
            round(time.perf_counter() - began, 2),
            round(time.thread_time() - cpu, 2),
        ]
    return got


PLAN = [  # name, arguments, environment, limit in seconds
    ("machine", (), {}, 60),
    ("fork", (), {"KERAS_BACKEND": "torch"}, 60),
    ("fork", (), {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cuda"}, 60),
    ("fork", (), {"KERAS_BACKEND": "torch", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}, 60),
    ("fork", (), {"KERAS_BACKEND": "jax"}, 60),
    ("beside", (), {"KERAS_BACKEND": "jax"}, 90),
    ("peaks", ("convolutions", "64"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 90),
    ("peaks", ("convolutions", "64"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 60),
    ("peaks", ("convolutions", "512"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 90),
    ("peaks", ("convolutions", "512"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 60),
    ("peaks", ("attention", "512"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 60),
    ("peaks", ("attention", "512"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 60),
    ("pile", (), {"KERAS_BACKEND": "jax"}, 60),
    ("torch_oom", ("convolutions", "0"), {"KERAS_BACKEND": "torch"}, 60),
    ("torch_oom", ("convolutions", "1"), {"KERAS_BACKEND": "torch"}, 60),
    ("torch_oom", ("dense",), {"KERAS_BACKEND": "torch"}, 60),
    ("torch_oom", ("recurrent",), {"KERAS_BACKEND": "torch"}, 60),
    ("clock", (), {}, 40),
    ("spin", (), {}, 40),
    ("peaks", ("residual", "32"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 150),
    ("peaks", ("residual", "32"), {"KERAS_BACKEND": "jax", "CACHE": "1"}, 90),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--fact", nargs="+")
    given = parser.parse_args()
    if given.fact:
        print("\n@" + json.dumps(globals()[given.fact[0]](*given.fact[1:]), default=str), flush=True)
        return
    ends, cache = time.monotonic() + 60 * given.minutes, tempfile.mkdtemp(prefix="xla-cache-")
    caching = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "facts.jsonl").open("a") as lines:
        for name, arguments, environment, limit in PLAN:
            if given.only and name not in given.only.split(","):
                continue
            left = ends - time.monotonic()
            if left < 10:
                break
            began, extra = time.monotonic(), dict(environment)
            if extra.pop("CACHE", None):
                extra |= caching
            line = {"fact": name, "arguments": arguments, "environment": environment}
            try:
                done = subprocess.run(
                    [sys.executable, __file__, "--fact", name, *arguments],
                    capture_output=True,
                    text=True,
                    timeout=min(limit, left),
                    env={**os.environ, **extra},
                    cwd=ROOT,
                    check=False,
                )
                found = [text for text in done.stdout.splitlines() if text.startswith("@")]
                line["got"] = json.loads(found[-1][1:]) if found else f"status {done.returncode}: {done.stderr[-1200:]}"
                warned = [
                    t[:220] for t in done.stderr.splitlines() if "out of memory" in t.lower() or "autotun" in t.lower()
                ]
                if warned:
                    line["log"] = warned[:6]
            except subprocess.TimeoutExpired:
                line["got"] = f"ended after {limit} s"
            line["seconds"] = round(time.monotonic() - began, 1)
            text = json.dumps(line, default=str)
            print(text, flush=True)
            lines.write(text + "\n"), lines.flush()


if __name__ == "__main__":
    main()
