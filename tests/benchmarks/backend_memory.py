"""Estimates of a step's memory on JAX and torch, against what the same step takes.

    python tests/benchmarks/backend_memory.py         print the frozen figures
    python tests/benchmarks/backend_memory.py --run   measure (five minutes) and freeze backend_memory.json

Method. The nine models of `zoo.py` (float32, Adam), each in processes of their own, on a CPU. The estimate is that of a
describing trial: on JAX XLA's buffer assignment at the first probe's batch and four times it, on torch the tensors of steps
of 2 and 6 samples; both are read at 16 times the first probe's batch, beside the same step's own: XLA's figure for that
batch, the tensors of a step of it. "Its step" is that without weights and optimizer, beside what plain `fit` in a process
without autofit grows by in a step, resident, when it is compiled and what compiling has left is given back: that also holds
what kernels take for themselves.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "backend_memory.json"
TIMES = 16
PAIRS = (("estimated", "of the same step"), ("estimated step", "growth"))


def measure(backend, name):
    """The row of a model, in a process that has trained nothing yet."""
    import zoo

    from autofit.backends.protocol import TrainStep
    from autofit.search.memory import estimates

    first = zoo.MODELS[zoo.BY_NAME[name]].first_probe
    model, size = zoo.build_model(name), TIMES * first
    if backend == "jax":
        from autofit.backends.jax.step_footprint import StepFootprint
    else:
        from autofit.backends.torch.step_footprint import StepFootprint
    step = StepFootprint(TrainStep(model, zoo.Batches(name, first)[0], device=None))
    footprints = list(step.estimates((first, 4 * first), compile_all=False))
    estimated = round(estimates(footprints, np.array([size]))[0])
    row = {"backend": backend, "model": name, "batch": size, "estimated": estimated}
    held = sum(size for part, size in footprints[0].device_bytes_by_part.items() if part in ("weights", "optimizer"))
    row["estimated step"] = row["estimated"] - held
    if backend == "jax":
        row["of the same step"] = next(iter(step.estimates((size,), compile_all=True))).device_bytes
    else:
        row["of the same step"] = held + max(step.step_bytes(zoo.Batches(name, first)[0], size))
    return row


def resident(name):
    """Bytes by which a process grows, resident, in a step of plain `fit` that is compiled already."""
    import zoo

    model, size = zoo.build_model(name), TIMES * zoo.MODELS[zoo.BY_NAME[name]].first_probe
    x, y = zoo.Batches(name, size)[0]
    model.fit(x, y, batch_size=size, epochs=2, verbose=0)
    ctypes.CDLL(None).malloc_trim(0)  # what compiling has left behind
    before = _status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    model.fit(x, y, batch_size=size, verbose=0)
    return _status("VmHWM") - before


def _status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def show(rows):
    """Print the figures."""
    for backend in dict.fromkeys(row["backend"] for row in rows):
        own = [row for row in rows if row["backend"] == backend]
        columns = "".join(f"{name:>12}" for name in ("estimated", "same step", "error", "its step", "resident", "error"))
        print(f"\n{backend:16}{'batch':>6}{columns}   (MiB)")
        for row in own:
            cells = [_cells(row, *pair) for pair in PAIRS]
            print(f"{row['model']:16}{row['batch']:6}{''.join(cells)}")
        for estimated, measured in PAIRS:
            errors = sorted(abs(row[estimated] / row[measured] - 1) for row in own if measured in row)
            print(f"against {measured}: median {statistics.median(errors):.1%}, largest {errors[-1]:.1%} of {len(errors)}")


def _cells(row, estimated, measured):
    """An estimate, what was measured, and the error; "-" for what was not."""
    if measured not in row:
        return f"{row[estimated] / 2**20:12.1f}{'-':>12}{'-':>12}"
    error = row[estimated] / row[measured] - 1
    return f"{row[estimated] / 2**20:12.1f}{row[measured] / 2**20:12.1f}{error:12.1%}"


def main():
    """Print the frozen figures, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure, and freeze backend_memory.json")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        backend, name, what = arguments.measure
        print(json.dumps(resident(name) if what == "resident" else measure(backend, name)), flush=True)
        os._exit(0)
    if arguments.run:
        import zoo

        rows = []
        for backend in ("jax", "torch"):
            for name in zoo.BY_NAME:
                environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
                row, grown = (
                    json.loads(
                        subprocess.check_output(
                            [sys.executable, __file__, "--measure", backend, name, what], env=environment
                        ).splitlines()[-1]
                    )
                    for what in ("estimate", "resident")
                )
                rows.append({**row, "growth": grown})
        FROZEN.write_text(json.dumps(rows, indent=1) + "\n")
    show(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
