"""Device memory of the nine models of the zoo, compiled by XLA for GPUs that are not there, and how straight its lines are.

    KERAS_BACKEND=jax python tests/benchmarks/absent_gpus.py [--models mlp,cnn] [--gpus T4,A100-40GB,H100]

A line goes through the totals of the first two batch sizes; the last column compares it with the total of the third. The
totals are those of `autofit estimate --gpu`, on JAX. Needs the extra `gpus`, no GPU.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import zoo  # beside this file

import autofit  # as above

SIZES = (8, 32, 128)


class Few(zoo.Batches):
    """As many samples as the largest of `SIZES`, so that no larger batch is compiled."""

    def __len__(self):
        return SIZES[-1] // SIZES[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.BY_NAME))
    parser.add_argument("--gpus", default="T4,A100-40GB,H100")
    arguments = parser.parse_args()
    print(f"MiB at batch {', '.join(map(str, SIZES))}")
    print("model           precision        GPU              8       32      128  line   seconds")
    errors = []
    for name in arguments.models.split(","):
        for precision in ("float32", "mixed_float16"):
            estimate = autofit.estimate(
                zoo.build_model,
                Few,
                model_kwargs={"name": name, "precision": precision, "xla": True},
                data_kwargs={"name": name, "batch_size": SIZES[0]},
                backend="jax",
                batch_size=SIZES,
                gpu=arguments.gpus.split(","),
                progress=False,
            )
            for gpu in estimate.gpus:
                total = {footprint.batch_size: footprint.device_bytes for footprint in gpu.footprints}
                if not all(size in total for size in SIZES):
                    print(f"{name:14}  {precision:15}  {gpu.gpu:10}  {gpu.problem}", flush=True)
                    continue
                low, high, third = (total[size] for size in SIZES)
                line = low + (high - low) / (SIZES[1] - SIZES[0]) * (SIZES[2] - SIZES[0])
                errors.append(line / third - 1)
                sizes = "  ".join(f"{size / 2**20:7,.0f}" for size in (low, high, third))
                row = f"{name:14}  {precision:15}  {gpu.gpu:10}  {sizes}  {errors[-1]:+5.1%}  {gpu.seconds:5.0f}"
                print(row, flush=True)
    off = sorted(map(abs, errors))
    middle, most = statistics.median(off), off[int(0.9 * len(off))]
    print(f"the line misses the third size by {middle:.1%} in the median, {most:.1%} at 90 %")


if __name__ == "__main__":
    main()
