"""Made-up data in place of downloads, and keras under its former name, for public scripts.

Python imports this file when it starts, if its folder is in PYTHONPATH.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
import time


class Finder(importlib.abc.MetaPathFinder):
    """Finds keras_core as another name of keras, and has the data sets of keras replaced."""

    is_asked = False

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "keras_core":
            return importlib.util.spec_from_loader(name, Alias())
        if name != "keras" or self.is_asked:
            return None
        Finder.is_asked = True
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        Finder.is_asked = False
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            replace_data_sets(module.datasets)
            if "TIME_FIT_SECONDS" in os.environ:
                time_fit(module, float(os.environ["TIME_FIT_SECONDS"]))

        spec.loader.exec_module = exec_module
        return spec


class Alias(importlib.abc.Loader):
    """Loads a module of keras under its former name."""

    def create_module(self, spec):
        return importlib.import_module("keras" + spec.name.removeprefix("keras_core"))

    def exec_module(self, module):
        pass


def replace_data_sets(datasets):
    """Have the data sets of keras return random data of their shapes, types and numbers."""
    import numpy as np

    draw = np.random.default_rng(0)

    def images(counts, shape, classes, labels=()):
        def part(count):
            y = draw.integers(classes, size=(count, *labels), dtype="uint8")
            return draw.integers(256, size=(count, *shape), dtype="uint8"), y

        return lambda *_, **__: tuple(map(part, counts))

    def texts(counts, classes):
        def part(count, words):
            lengths = draw.integers(20, 300, size=count)
            x = [draw.integers(1, words, size=length).tolist() for length in lengths]
            return np.array(x, dtype=object), draw.integers(classes, size=count)

        return lambda *_, num_words=10_000, **__: tuple(
            part(n, num_words) for n in counts
        )

    def table(counts, columns):
        def part(count):
            return draw.normal(size=(count, columns)), draw.normal(size=count)

        return lambda *_, **__: tuple(map(part, counts))

    datasets.mnist.load_data = images((60_000, 10_000), (28, 28), 10)
    datasets.fashion_mnist.load_data = images((60_000, 10_000), (28, 28), 10)
    datasets.cifar10.load_data = images((50_000, 10_000), (32, 32, 3), 10, (1,))
    datasets.cifar100.load_data = images((50_000, 10_000), (32, 32, 3), 100, (1,))
    datasets.imdb.load_data = texts((25_000, 25_000), 2)
    datasets.reuters.load_data = texts((8_982, 2_246), 46)
    datasets.boston_housing.load_data = table((404, 102), 13)
    datasets.california_housing.load_data = table((16_512, 4_128), 8)


def time_fit(keras, seconds):
    """Have `fit` print its steps per second after `seconds` of epochs, and end the process.

    The first epoch does not count, nor do validations.
    """
    fit = keras.Model.fit

    class Timer(keras.callbacks.Callback):
        # a hook of batches would make each step wait for its metrics
        timed = 0.0
        steps = 0
        began = 0.0

        def on_epoch_begin(self, epoch, logs=None):
            # the first compiles
            self.began = time.perf_counter() if epoch else 0.0

        def on_test_begin(self, logs=None):
            self.count()

        def on_epoch_end(self, epoch, logs=None):
            self.count()
            if self.timed > seconds:
                self.on_train_end()

        def count(self):
            if self.began:
                self.timed += time.perf_counter() - self.began
                self.steps += self.params["steps"]
                self.began = 0.0

        def on_train_end(self, logs=None):
            if not self.timed:
                sys.exit("fit ended too soon to be timed")
            rate = self.steps / self.timed
            print("\n" + json.dumps({"steps_per_second": rate}), flush=True)
            os._exit(0)

    def timed_fit(self, *args, callbacks=None, **kwargs):
        return fit(self, *args, callbacks=[*(callbacks or ()), Timer()], **kwargs)

    keras.Model.fit = timed_fit


sys.meta_path.insert(0, Finder())
