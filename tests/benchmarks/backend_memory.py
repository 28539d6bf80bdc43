"""Estimates of a step's memory on JAX and torch, against what the same step takes.

    python tests/benchmarks/backend_memory.py         print the frozen figures
    python tests/benchmarks/backend_memory.py --run   measure (five minutes) and freeze backend_memory.json

Method. The nine models of `zoo.py` (float32, Adam), each in processes of their own, on a CPU. The estimate is that of a
describing trial: on JAX XLA's buffer assignment at the first probe's batch and four times it, on torch the tensors of steps
of 2 and 6 samples; both are read at 16 times the first probe's batch, beside the same step's own: XLA's figure for that
batch, the tensors of a step of it. The growth is the estimate of that batch less that of 2 samples, beside what plain `fit`
in a process without autofit grows by, resident, between such steps: it holds what kernels take for themselves, and what the
C library keeps, but not what compiling takes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "backend_memory.json"
TIMES, SMALL = 16, 2
PAIRS = (("estimated", "of the same step"), ("estimated growth", "growth"))


def measure(backend, name):
    """The row of a model, in a process that has trained nothing yet."""
    import zoo

    from autofit.search.surrogate.device_estimate import estimated_bytes

    first = zoo.MODELS[zoo.BY_NAME[name]].first_probe
    model, size = zoo.build_model(name), TIMES * first
    if backend == "jax":
        from autofit.backends.jax.step_footprint import StepFootprint
    else:
        from autofit.backends.torch.step_footprint import StepFootprint
    step = StepFootprint(model, zoo.Batches(name, first)[0], on_cpu=True)
    estimates = list(step.estimates((first, 4 * first), compile_all=False))
    row = {"backend": backend, "model": name, "batch": size, "estimated": round(estimated_bytes(estimates, size))}
    row["estimated growth"] = row["estimated"] - round(
        estimated_bytes(list(step.estimates((SMALL, first), compile_all=True)), SMALL)
    )
    held = sum(size for part, size in estimates[0].device_bytes_by_part.items() if part in ("weights", "optimizer"))
    if backend == "jax":
        row["of the same step"] = next(iter(step.estimates((size,), compile_all=True))).device_bytes
    else:
        row["of the same step"] = held + max(step.step_bytes(zoo.Batches(name, first)[0], size))
    return row


def resident(name):
    """Bytes by which a process grows from steps of a small batch to those of the large one."""
    import zoo

    model, size = zoo.build_model(name), TIMES * zoo.MODELS[zoo.BY_NAME[name]].first_probe
    x, y = zoo.Batches(name, size)[0]
    model.fit(x[:SMALL], y[:SMALL], batch_size=SMALL, epochs=2, verbose=0)
    before = _status("VmRSS")
    model.fit(x, y, batch_size=size, verbose=0)  # compiles, which takes memory of its own
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    model.fit(x, y, batch_size=size, epochs=3, verbose=0)
    return _status("VmHWM") - before


def _status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def show(rows):
    """Print the figures."""
    mib = 2**20
    for backend in dict.fromkeys(row["backend"] for row in rows):
        own = [row for row in rows if row["backend"] == backend]
        columns = "".join(f"{name:>12}" for name in ("estimated", "same step", "error", "growth", "resident", "error"))
        print(f"\n{backend:16}{'batch':>6}{columns}   (MiB)")
        for row in own:
            cells = []
            for estimated, measured in PAIRS:
                cells += [
                    f"{row[estimated] / mib:12.1f}{row[measured] / mib:12.1f}{row[estimated] / row[measured] - 1:12.1%}"
                ]
            print(f"{row['model']:16}{row['batch']:6}{''.join(cells)}")
        for estimated, measured in PAIRS:
            errors = sorted(abs(row[estimated] / row[measured] - 1) for row in own)
            print(f"against {measured}: median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")


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
