"""Estimates of a step's memory on JAX and torch, against what the same step takes.

    python tests/benchmarks/backend_memory.py         print the frozen figures
    python tests/benchmarks/backend_memory.py --run   measure (five minutes) and freeze backend_memory.json

Method. The nine models of `zoo.py` (float32, Adam), each in a process of its own, on a CPU. The estimate is that of a
describing trial: on JAX XLA's buffer assignment at the first probe's batch and four times it, on torch the tensors of steps
of 2 and 6 samples; both are read at 16 times the first probe's batch. Measured on JAX: XLA's figure for that batch, and
what the resident memory of the process grows by in a step; on torch: the tensors of a step of that batch, and the same
growth. The growth is that over a process that has trained on the smallest batch; it holds what kernels take for themselves,
and what the C library keeps.
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
TIMES = 16


def measure(backend, name):
    """The row of a model, in a process that has trained nothing yet."""
    import keras  # with the backend of this process
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
    held = sum(size for part, size in estimates[0].device_bytes_by_part.items() if part in ("weights", "optimizer"))
    if backend == "jax":
        row["of the same step"] = next(iter(step.estimates((size,), compile_all=True))).device_bytes
    else:
        row["of the same step"] = held + step._step_bytes(zoo.Batches(name, first)[0], size)
    model = zoo.build_model(name)
    model.fit(zoo.Batches(name, 2), steps_per_epoch=2, verbose=0)
    small = next(iter(step.estimates((2,), compile_all=True)))
    before = _status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    x, y = zoo.Batches(name, size)[0]
    keras.backend.clear_session(free_memory=True)
    model.fit(x, y, batch_size=size, epochs=2, verbose=0)
    row["resident"] = _status("VmHWM") - before + small.device_bytes
    return row


def _status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def show(rows):
    """Print the figures."""
    mib = 2**20
    for backend in dict.fromkeys(row["backend"] for row in rows):
        own = [row for row in rows if row["backend"] == backend]
        print(
            f"\n{backend:16}{'batch':>6}{'estimated':>12}{'same step':>12}{'error':>8}{'resident':>12}{'error':>8}   (MiB)"
        )
        for row in own:
            same, resident = row["of the same step"], row["resident"]
            cells = f"{row['estimated'] / mib:12.1f}{same / mib:12.1f}{row['estimated'] / same - 1:8.1%}"
            print(f"{row['model']:16}{row['batch']:6}{cells}{resident / mib:12.1f}{row['estimated'] / resident - 1:8.1%}")
        for key in ("of the same step", "resident"):
            errors = sorted(abs(row["estimated"] / row[key] - 1) for row in own)
            print(f"against {key}: median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")


def main():
    """Print the frozen figures, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure, and freeze backend_memory.json")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)), flush=True)
        os._exit(0)
    if arguments.run:
        import zoo

        rows = []
        for backend in ("jax", "torch"):
            for name in zoo.BY_NAME:
                command = [sys.executable, __file__, "--measure", backend, name]
                environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
                done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
                if done.returncode:
                    print(backend, name, done.stderr[-2000:])
                    continue
                rows.append(json.loads(done.stdout.splitlines()[-1]))
        FROZEN.write_text(json.dumps(rows, indent=1) + "\n")
    show(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
