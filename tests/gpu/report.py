"""What the stages share: where they run, and how they report what they find."""

import json
import os
import sys
from pathlib import Path

import pynvml

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ["VISIT_FOLDER"])
BACKEND = os.environ["KERAS_BACKEND"]
SMALL = "VISIT_SMALL" in os.environ
DEVICE = "cpu" if SMALL else "gpu"
MIB = 2**20
TIGHT_LIMIT, LIMIT = (96 * MIB, 1024 * MIB) if SMALL else (2048 * MIB, 12288 * MIB)
# the other backends do not limit the memory of a CPU
IS_LIMITED = BACKEND == "tensorflow" or not SMALL
# of a stage: to start, and to end what has begun
SPARE_SECONDS = 25 if SMALL else 10


def write(**fields):
    with Path(sys.argv[3]).open("a") as file:
        file.write(json.dumps(fields, default=str) + "\n")


def figure(name, value, low=None, high=None, *, on_cpu=True):
    """Report a figure, or the ends of a list, that is right from `low` to `high` or, without
    `high`, if it is `low`.
    """
    # other work spoils rates and seconds of a CPU
    ends = [min(value), max(value)] if isinstance(value, list) else [value]
    high = low if high is None else high
    text = " to ".join(
        f"{end:.3g}" if isinstance(end, float) else str(end)
        for end in dict.fromkeys(ends)
    )
    expected = "" if low is None else str(low) if low == high else f"{low} to {high}"
    is_judged = low is not None and (on_cpu or not SMALL)
    is_right = all(low <= end <= high for end in ends) if is_judged else None
    write(figure=[name, text, expected, is_right])


def gpu_used_mib():
    """The memory of the first GPU that is in use; 0 in a rehearsal."""
    if SMALL:
        return 0
    pynvml.nvmlInit()
    return (
        pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used // MIB
    )
