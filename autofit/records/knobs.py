"""The knobs, one row for each: what is tried by default, what is allowed, how it is called, and where it goes.

    row ──┬─> search space and `baseline`: values, lowest, default, autotunes
          ├─> data: a parameter of the user's factory, by `parameters`; model: an attribute, if there are none
          └─> messages: label, less, more

A new knob is a row here, a field of `FitConfig`, and what is special about it in `workload/inputs/` and
in `search/`: `space.py`, `context.py`, `rates.py` and `memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

PROCESSES, THREADS = (
    "num_workers",
    "num_threads",
)  # parameters: worker processes of torch and grain, threads of grain


@dataclass(frozen=True)
class KnobRow:
    """What is known of a knob beside its values in a config."""

    label: str
    less: str  # the word for a smaller value
    more: str
    lowest: int
    default: int | None  # Keras's
    values: tuple[
        int, ...
    ] = ()  # tried by default; those of batch size and workers follow from data and machine
    parameters: tuple[
        str, ...
    ] = ()  # names that a factory's parameter may have: those of Keras, tf.data, torch and grain
    autotunes: bool = False  # whether -1 (tf.data.AUTOTUNE) is a value: tf.data then sets the number while it runs
    of_queue: bool = False  # whether it has an effect only with a queue


PERSISTENT = "persistent_workers"  # stands for use_multiprocessing: workers of a torch DataLoader are always processes
_WORKERS = ("workers", "num_parallel_calls", PROCESSES, THREADS)
_QUEUE = ("max_queue_size", "prefetch", "prefetch_buffer_size")
_BY_PROCESSES = ("use_multiprocessing", PERSISTENT)
_FACTOR = ("prefetch_factor", "per_worker_buffer_size")

# label, words for a smaller and a larger value, lowest value, Keras's default, values that are tried, names of parameters
KNOBS: dict[str, KnobRow] = {
    "batch_size": KnobRow("batch", "smaller", "larger", 1, 32, parameters=("batch_size",)),
    "workers": KnobRow("workers", "fewer", "more", 0, 1, parameters=_WORKERS, autotunes=True),
    # a queue of size 0 may hold a whole epoch
    "max_queue_size": KnobRow(
        "queue", "shorter", "longer", 1, 10, (2, 4, 10, 32), _QUEUE, autotunes=True, of_queue=True
    ),
    "use_multiprocessing": KnobRow(
        "", "threads", "processes", 0, False, (False, True), _BY_PROCESSES, of_queue=True
    ),
    "prefetch_factor": KnobRow(
        "prefetch", "less", "more", 1, None, (2, 4, 8), _FACTOR, of_queue=True
    ),
    # 32 steps leave 3 % of what a call costs
    "steps_per_execution": KnobRow("steps a call", "fewer", "more", 1, None, (1, 8, 32)),
}

DATA_KNOBS = tuple(knob for knob, row in KNOBS.items() if row.parameters)  # that the data takes
STEPS_PER_EXECUTION = "steps_per_execution"  # the knob that is an attribute of the compiled model
# a further value of this knob on a GPU where one program takes all batches of a call (assumed to
# pay there; on a CPU, 128 steps were at most 1.09 times as fast as 32, measured in one round)
STACKED_STEPS = 128
