"""Rates and peaks of Keras's own `fit`, with which the figures of autofit are compared.

Nothing here imports autofit.
"""

import importlib
import math
import os
import time

import psutil
import pynvml

BACKEND = os.environ["KERAS_BACKEND"]
SMALL = "VISIT_SMALL" in os.environ
DATA_KNOBS = ("workers", "max_queue_size", "use_multiprocessing")
MODEL_KNOBS = ("steps_per_execution", "jit_compile")
FEW_STEPS = 4
MOST_GROWTH = 8
READING_SECONDS = (
    0.2 if SMALL else 1.2
)  # by which the longer of two trainings is longer

library = importlib.import_module(BACKEND)


def limit_memory(limit_bytes):
    """Limit the memory of the GPU, before its first use.

    NVML's total is up to 3% more than CUDA's.
    """
    share = (
        limit_bytes
        / pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    )
    if BACKEND == "jax":
        os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{share:.6f}"
    elif BACKEND == "torch":
        library.cuda.set_per_process_memory_fraction(share)
    else:
        gpu = library.config.list_physical_devices("GPU")[0]
        limit = library.config.LogicalDeviceConfiguration
        library.config.set_logical_device_configuration(
            gpu, [limit(memory_limit=limit_bytes / 2**20)]
        )


def held():
    """The bytes that are allocated and reserved now.

    In a rehearsal, the memory of the process stands for both.
    """
    if SMALL:
        return 2 * (psutil.Process().memory_info().rss,)
    if BACKEND == "jax":
        memory = library.local_devices()[0].memory_stats()
        return memory["bytes_in_use"], memory.get("pool_bytes") or memory["bytes_limit"]
    return library.cuda.memory_allocated(), library.cuda.memory_reserved()


def peaks_of(train):
    """The peaks of allocated and of reserved memory while a function trains, in bytes.

    None where it is not counted.

    JAX cannot count anew: its peak is the highest since the process began.
    """
    if BACKEND == "tensorflow":
        name = "CPU:0" if SMALL else "GPU:0"
        memory = library.config.experimental
        memory.reset_memory_stats(name)
        train()
        return memory.get_memory_info(name)["peak"], None
    if SMALL:
        train()
        return held()
    if BACKEND == "jax":
        train()
        return library.local_devices()[0].memory_stats()["peak_bytes_in_use"], None
    library.cuda.empty_cache()
    library.cuda.reset_peak_memory_stats()
    train()
    return library.cuda.max_memory_allocated(), library.cuda.max_memory_reserved()


def record_history():
    """Let torch's allocator write down what it does from now on, without stacks, which take most of
    a file.
    """
    if not SMALL:
        library.cuda.memory._record_memory_history(context=None, clear_history=True)


def dump_history(file):
    """Save what torch's allocator has done, and its segments; in a rehearsal, nothing."""
    if SMALL:
        file.write_bytes(b"")
    else:
        library.cuda.memory._dump_snapshot(str(file))


class Trainer:
    """Trains a job in configurations, which are mappings of knobs to values."""

    def __init__(self, build_model, data):
        self.build_model = build_model
        self.data = data
        self.models = {}

    def model(self, config):
        """One model for all sizes and all data, so that what is compiled stays compiled."""
        key = tuple((knob, config[knob]) for knob in MODEL_KNOBS if knob in config)
        if key not in self.models:
            self.models[key] = self.build_model()
            for knob, value in key:
                setattr(self.models[key], knob, value)
        return self.models[key]

    def train(self, config, steps):
        """Train for so many steps; returns the seconds."""
        model = self.model(config)
        size = config["batch_size"]
        knobs = {knob: config[knob] for knob in DATA_KNOBS if knob in config}
        data = self.data(batch_size=size, count=steps * size, **knobs)
        began = time.perf_counter()
        model.fit(data, verbose=0)
        return time.perf_counter() - began

    def rate(self, config):
        """Samples per second of the steps by which one training is longer than another: start and
        end do not count.
        """
        in_call = config.get("steps_per_execution", 1)
        steps = in_call * math.ceil(FEW_STEPS / in_call)
        growth = MOST_GROWTH
        self.train(config, steps)  # compiles
        seconds = self.train(config, steps)
        while (
            longer := self.train(config, growth * steps) - seconds
        ) < READING_SECONDS:
            steps = growth * steps
            seconds = seconds + longer
            growth = min(
                MOST_GROWTH, max(2, math.ceil(2 * READING_SECONDS / max(longer, 0.01)))
            )
        return (growth - 1) * steps * config["batch_size"] / longer
