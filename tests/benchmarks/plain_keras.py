"""Time Keras's `fit` without autofit: a config of a public program, in a process of its own.

A callback notes when each call of the train function ends. Counted are the steps after 2 s, for 3 s
and 8 steps at least; an epoch's first five and its last call are left out. With a queue, or fewer
than three calls in an epoch, whole epochs are counted instead, for 3 s at least: between two epochs
a queue fills while no step runs, and its batches would then count as if they had taken no time.
"""

import contextlib
import importlib
import inspect
import json
import math
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
WARM_UP_SECONDS = 2.0
SECONDS = 3.0
STEPS = 8
LEFT_OUT = 5
FEWEST_CALLS = 3  # of an epoch whose calls are counted


# not an error; Keras takes a StopIteration for the end of the data
class Enough(Exception):  # noqa: N818  # not an error
    """The steps that count have been timed."""


def arguments_of(make, config):
    """The arguments of `fit` that hold the data.

    A factory takes the knobs that it names, arrays only `batch_size`.
    """
    if inspect.signature(make).parameters:
        return {"x": make(**config)}
    made = make()
    parts = made if isinstance(made, tuple) else (made,)
    return {**dict(zip(("x", "y"), parts, strict=False)), **config}


def length_of(x, y=None, *, batch_size):
    """The batches and the samples of an epoch."""
    if y is not None:
        return math.ceil(len(x) / batch_size), len(x)
    last = len(x) - 1
    inputs, *_ = x[last] if hasattr(x, "__getitem__") else next(iter(x.skip(last)))
    return len(x), last * batch_size + len(inputs)


def time_fit(model, arguments, config):
    """Samples per second, and seconds from the start to the end of the first call and of all."""
    import keras  # in the process that trains alone

    first = last = (
        None  # when the first step ended; when the last one did, None where its end does not count
    )
    steps = ended = 0
    seconds = 0.0

    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            nonlocal last, ended
            last = None
            ended = -1

        def on_train_batch_end(self, batch, logs=None):
            nonlocal first, last, steps, seconds, ended
            now = time.perf_counter()
            done = batch - ended
            first = first or now
            ended = batch
            is_whole = not self.params["steps"] or batch < self.params["steps"]
            if last is not None and is_whole:
                seconds = seconds + now - last
                steps = steps + done
            counts = batch >= LEFT_OUT and now > first + WARM_UP_SECONDS
            last = now if counts else None
            if seconds >= SECONDS and steps >= STEPS:
                raise Enough

    class WholeEpochs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal first
            first = first or time.perf_counter()

        def on_epoch_begin(self, epoch, logs=None):
            nonlocal last, seconds, steps
            now = time.perf_counter()
            if last is not None:
                seconds = now - last
                steps = steps + epoch_samples / config["batch_size"]
            elif epoch and now > first + WARM_UP_SECONDS:
                last = now
            if seconds >= SECONDS:
                raise Enough

    length, epoch_samples = length_of(
        arguments["x"], arguments.get("y"), batch_size=config["batch_size"]
    )
    has_queue = bool(config.get("workers"))
    has_calls = length >= FEWEST_CALLS * model.steps_per_execution
    started = time.perf_counter()
    with contextlib.suppress(Enough):
        model.fit(
            **arguments,
            epochs=10_000,
            verbose=0,
            callbacks=[Ends() if has_calls and not has_queue else WholeEpochs()],
        )
    return {
        "rate": steps * config["batch_size"] / seconds,
        "first_step": first - started,
        "ran": time.perf_counter() - started,
    }


def timed(programs, job, data, config):
    """Time a config in a process.

    Returns its rate, and its seconds without those after the first step.

    The functions `{job}_model` and `data` of a module of programs make the model and the data.
    """
    command = [
        sys.executable,
        __file__,
        programs,
        f"{job}_model",
        data,
        json.dumps(config),
    ]
    started = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row = json.loads(output.splitlines()[-1])
    return row["rate"], time.perf_counter() - started - row["ran"] + row["first_step"]


def main():
    programs, model, data, config = sys.argv[1:]
    module = importlib.import_module(programs)
    config = json.loads(config)
    made = getattr(module, model)()
    made.steps_per_execution = config.pop("steps_per_execution", 1)
    print(
        json.dumps(time_fit(made, arguments_of(getattr(module, data), config), config)),
        flush=True,
    )
    os._exit(0)  # the threads of an interrupted `fit` wait for ever


if __name__ == "__main__":
    main()
