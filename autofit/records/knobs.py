"""The knobs, and configs, which have a value of each.

    row ──┬─> search space and `baseline`: values, lowest, default, autotunes
          ├─> how configs are compared: coordinate, rank
          ├─> data: a parameter of the user's factory, by `parameters`; model: an attribute, if
          │   there are none
          └─> messages: label, less, more, text; a column of the page's table of trials

A new knob is a row and a field of `FitConfig` here, and a field of `Baseline`, `Space` and
`SearchSpace` in `search/space.py`. What is special about it is in `workload/inputs/`, and in the
laws of `search/rates.py` and `search/memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.records.units import Knob, Positive, counted

# `tf.data.AUTOTUNE`: tf.data itself chooses the number of parallel calls or of prefetched batches,
# while it runs
AUTOTUNE = -1
# The number of batches that is assumed for `prefetch(AUTOTUNE)`. Its buffer starts with one batch
# and doubles each time it was full and then ran empty, up to half of the free RAM: 2 to 10 batches
# were ready in training (measured).
AUTOTUNE_BATCHES = 8


@dataclass(frozen=True)
class FitConfig:
    """One setting of the knobs; a knob is None if it is not searched or the data does not take it.

    `prefetch_factor` is the number of batches that each worker process of a torch `DataLoader`
    makes ahead; it replaces `max_queue_size`, which a `DataLoader` does not have.
    `steps_per_execution` is the number of batches on which one call of the train function trains;
    the model's own value stays where it is None.

    Example:
        >>> autofit.FitConfig(batch_size=64, workers=4, max_queue_size=2).values()
        {'batch_size': 64, 'workers': 4, 'max_queue_size': 2}
    """

    batch_size: Positive | None = None
    workers: Knob | None = None
    max_queue_size: Knob | None = None
    use_multiprocessing: bool | None = None
    prefetch_factor: Knob | None = None
    steps_per_execution: Positive | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FitConfig:
        """Make a config from a mapping of knobs to values; other keys are ignored."""
        return cls(**{knob: values[knob] for knob in KNOBS if knob in values})

    def values(self) -> dict[str, Any]:
        """Return the knobs that are not None, with their values."""
        return {knob: value for knob, value in vars(self).items() if value is not None}

    @property
    def has_queue(self) -> bool:
        """Whether there is a queue between the workers and the train step."""
        # Keras makes a queue for more than one worker thread, or for any worker process. Without a
        # queue, `workers` 0 and 1 have the same effect, and `max_queue_size` has none (Keras 3.15,
        # `PyDatasetAdapter`). Data that takes `max_queue_size` but not `workers` has a queue, and
        # so has tf.data with AUTOTUNE.
        if AUTOTUNE in (self.workers, self.max_queue_size):
            return True
        if self.workers is None:
            return self.max_queue_size is not None or bool(self.use_multiprocessing)
        return self.workers > 1 or (self.workers > 0 and bool(self.use_multiprocessing))

    @property
    def queue_batches(self) -> int:
        """The number of batches in a full queue."""
        if not self.has_queue:
            return 0
        if self.prefetch_factor is not None:
            return self.prefetch_factor * (self.workers or 0)
        return (
            AUTOTUNE_BATCHES
            if self.max_queue_size == AUTOTUNE
            else self.max_queue_size or 0
        )

    @property
    def queue_in_words(self) -> str | None:
        """The number of batches in a full queue, as text; None without a known queue."""
        if not self.has_queue or (
            self.max_queue_size is None and self.prefetch_factor is None
        ):
            return None
        return value_in_words(
            AUTOTUNE if self.max_queue_size == AUTOTUNE else self.queue_batches
        )

    def worker_count(self, cores: int) -> int:
        """Return the number of threads or processes that make batches.

        It is 1 without a queue; with AUTOTUNE, there is one a core.
        """
        if not self.has_queue:
            return 1
        return cores if self.workers == AUTOTUNE else self.workers or 1

    def __str__(self) -> str:
        rows = sorted(KNOBS.values(), key=lambda row: row.rank)
        parts = [row.text(self) for row in rows if row.text is not None]
        return ", ".join(filter(None, parts)) or "no knobs"


def value_in_words(value: int) -> str:
    """Return the value of a knob as text; AUTOTUNE is "auto"."""
    return "auto" if value == AUTOTUNE else str(value)


@dataclass(frozen=True)
class Coordinate:
    """A knob as a coordinate: the octaves (doublings) of a size, which is at least 1.

    AUTOTUNE has a coordinate of its own, with the same weight.
    """

    size: Callable[[FitConfig, int], float]  # of a config, on a number of cores
    # of an octave, where the nearest config is sought (assumed): four octaves of batch size or
    # workers are between threads and processes
    weight: float
    # octaves within which rates deviate alike from the law of `search/rates.py`
    length: float


@dataclass(frozen=True, kw_only=True)
class KnobRow:
    """What is known of a knob beside its values in a config.

    A `coordinate`, a `text` or a `column` is None if that of another knob shows this one's value,
    too.
    """

    label: str
    less: str  # the word for a smaller value
    more: str
    lowest: int
    default: int | None  # Keras's
    # the place among the knobs in the text of a config, and where configs are compared: a lower
    # one counts first
    rank: int
    coordinate: Coordinate | None
    # in a config's text; empty if it has no effect
    text: Callable[[FitConfig], str] | None
    # under `label` in the table of trials
    column: Callable[[FitConfig], str | None] | None
    # tried by default; those of batch size and workers follow from data and machine
    values: tuple[int, ...] = ()
    # names that a factory's parameter may have: those of Keras, tf.data, torch and grain
    parameters: tuple[str, ...] = ()
    # whether a factory with `**kwargs` takes it, as they are taken to be those of a PyDataset
    by_kwargs: bool = False
    # whether -1 (tf.data.AUTOTUNE) is a value: tf.data then sets the number while it runs
    autotunes: bool = False
    of_queue: bool = False  # whether it has an effect only with a queue

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)


# parameters: worker processes of torch and grain, threads of grain
PROCESSES = "num_workers"
THREADS = "num_threads"
# stands for use_multiprocessing: workers of a torch DataLoader are always processes
PERSISTENT = "persistent_workers"


def _workers_text(config: FitConfig) -> str:
    if config.workers is None:
        return ""
    if config.workers == AUTOTUNE:
        return "auto threads"
    return counted(
        config.workers, "process" if config.use_multiprocessing else "thread"
    )


def _workers_column(config: FitConfig) -> str | None:
    if config.workers is None:
        return None
    return f"{value_in_words(config.workers)} {'proc' if config.use_multiprocessing else 'thr'}"


def _queue_text(config: FitConfig) -> str:
    if config.max_queue_size is None or not config.has_queue:
        return ""
    return f"queue {value_in_words(config.max_queue_size)}"


def _prefetch_text(config: FitConfig) -> str:
    if config.prefetch_factor is None or not config.has_queue:
        return ""
    return f"prefetch {config.prefetch_factor}"


def _steps_text(config: FitConfig) -> str:
    steps = config.steps_per_execution or 1
    return f"{steps} steps a call" if steps > 1 else ""


# the knob that is an attribute of the compiled model
STEPS_PER_EXECUTION = "steps_per_execution"

KNOBS: dict[str, KnobRow] = {
    "batch_size": KnobRow(
        label="batch",
        less="smaller",
        more="larger",
        lowest=1,
        default=32,
        rank=1,
        coordinate=Coordinate(
            lambda config, cores: config.batch_size or 1, weight=1.0, length=2.0
        ),
        text=lambda c: "" if c.batch_size is None else f"batch {c.batch_size}",
        column=lambda c: None if c.batch_size is None else f"{c.batch_size:,}",
        parameters=("batch_size",),
        by_kwargs=True,
    ),
    "workers": KnobRow(
        label="workers",
        less="fewer",
        more="more",
        lowest=0,
        default=1,
        rank=2,
        coordinate=Coordinate(FitConfig.worker_count, weight=1.0, length=2.0),
        text=_workers_text,
        column=_workers_column,
        parameters=("workers", "num_parallel_calls", PROCESSES, THREADS),
        by_kwargs=True,
        autotunes=True,
    ),
    "max_queue_size": KnobRow(
        label="queue",
        less="shorter",
        more="longer",
        lowest=1,  # a queue of size 0 may hold a whole epoch
        default=10,
        rank=5,
        coordinate=Coordinate(
            lambda config, cores: config.queue_batches + 2, weight=0.3, length=6.0
        ),
        text=_queue_text,
        column=lambda config: config.queue_in_words,
        values=(2, 4, 10, 32),
        parameters=("max_queue_size", "prefetch", "prefetch_buffer_size"),
        by_kwargs=True,
        autotunes=True,
        of_queue=True,
    ),
    "use_multiprocessing": KnobRow(
        label="",
        less="threads",
        more="processes",
        lowest=0,
        default=False,
        rank=3,
        coordinate=Coordinate(
            lambda config, cores: (
                1 + (config.has_queue and bool(config.use_multiprocessing))
            ),
            weight=4.0,
            length=0.5,
        ),
        text=None,  # that of the workers
        column=None,
        values=(False, True),
        parameters=("use_multiprocessing", PERSISTENT),
        by_kwargs=True,
        of_queue=True,
    ),
    "prefetch_factor": KnobRow(
        label="prefetch",
        less="less",
        more="more",
        lowest=1,
        default=None,
        rank=4,
        coordinate=None,  # that of the queue
        text=_prefetch_text,
        column=None,
        values=(2, 4, 8),
        parameters=("prefetch_factor", "per_worker_buffer_size"),
        of_queue=True,
    ),
    STEPS_PER_EXECUTION: KnobRow(
        label="steps a call",
        less="fewer",
        more="more",
        lowest=1,
        default=None,
        rank=6,
        coordinate=Coordinate(
            lambda config, cores: config.steps_per_execution or 1,
            weight=0.3,
            length=20.0,
        ),
        text=_steps_text,
        column=lambda c: str(c.steps_per_execution or "") or None,
        values=(1, 8, 32),  # 32 steps leave 3 % of what a call costs
    ),
}

# knobs that the data takes
DATA_KNOBS = tuple(knob for knob, row in KNOBS.items() if row.parameters)
# the defaults of `Model.fit` and `PyDataset.__init__` (Keras 3.15)
KERAS_DEFAULTS = FitConfig.of({knob: row.default for knob, row in KNOBS.items()})
# a further value of this knob on a GPU where one program takes all batches of a call (assumed to
# pay there; on a CPU, 128 steps were at most 1.09 times as fast as 32, measured in one round)
STACKED_STEPS = 128
