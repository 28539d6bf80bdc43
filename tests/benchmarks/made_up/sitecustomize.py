"""Made-up data in place of downloads, and keras under its former name keras_core, for public scripts.

Python imports this file when it starts, if its folder is in PYTHONPATH.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys

SAMPLES = int(os.environ.get("MADE_UP_SAMPLES", "4000"))


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
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)))
        Finder.is_asked = False
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            replace_data_sets(module.datasets)

        spec.loader.exec_module = exec_module
        return spec


class Alias(importlib.abc.Loader):
    """Loads a module of keras under its former name."""

    def create_module(self, spec):
        return importlib.import_module("keras" + spec.name.removeprefix("keras_core"))

    def exec_module(self, module):
        pass


def replace_data_sets(datasets):
    """Have the data sets of keras return random data of their shapes and types."""
    import numpy as np

    draw = np.random.default_rng(0)

    def images(shape, classes, labels):
        def part(count):
            y = draw.integers(classes, size=(count, *labels)).astype("uint8")
            return draw.integers(0, 256, size=(count, *shape)).astype("uint8"), y

        return lambda *_, **__: (part(SAMPLES), part(SAMPLES // 4))

    def texts(num_words=10_000, *_, **__):
        def part(count):
            lengths = draw.integers(20, 200, size=count)
            x = [list(map(int, draw.integers(1, num_words, size=length))) for length in lengths]
            return np.array(x, dtype=object), draw.integers(2, size=count)

        return part(SAMPLES), part(SAMPLES // 4)

    def table(columns):
        def part(count):
            return draw.normal(size=(count, columns)), draw.normal(size=count)

        return lambda *_, **__: (part(SAMPLES), part(SAMPLES // 4))

    datasets.mnist.load_data = images((28, 28), 10, ())
    datasets.fashion_mnist.load_data = images((28, 28), 10, ())
    datasets.cifar10.load_data = images((32, 32, 3), 10, (1,))
    datasets.cifar100.load_data = images((32, 32, 3), 100, (1,))
    datasets.imdb.load_data = datasets.reuters.load_data = texts
    datasets.boston_housing.load_data = table(13)
    datasets.california_housing.load_data = table(8)


sys.meta_path.insert(0, Finder())
