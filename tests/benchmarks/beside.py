"""autofit beside other tools on one public program: their answers, times, and rates of choices.

    python tests/benchmarks/beside.py          print the frozen table (the same as beside.txt)
    python tests/benchmarks/beside.py --run    ask all tools, time their choices, freeze beside.json

Method. "Digits" of `public_jobs.py` runs on Keras with torch. Each process may take `BUDGET` beside
what it has before its data are made (`RLIMIT_DATA`), and no tool is told: beyond it, torch raises
its error as on a full GPU. Each tool runs once, in a process of its own, as its documentation
shows; a search has `TRIALS` fits of `SAMPLES` over `SIZES`. Lightning trains the same Keras network
with torch's optimizer. The choices and the program's own batch size then run in plain `fit` under
the same limit, in turn; the last column is the median rate over the highest. "Out of memory" counts
tries that ended so. `--run` needs all that is imported below, and torch.
"""

import functools
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import public_jobs
import public_tunes
from plain_keras import timed

from autofit.machine.host import detect

HERE = pathlib.Path(__file__)
FROZEN = HERE.with_suffix(".json")
FULL = (RuntimeError, MemoryError)
SIZES = (128, 16, 32, 64, 256, 512, 1024, 2048, 4096)  # the first is the program's own
BUDGET = 2**30
SAMPLES = 4096
TRIALS = 10
ROUNDS = 3


@functools.cache
def digits():
    """The program's data; limits this process before it makes them."""
    used = 1024 * int(
        re.search(r"VmData:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used + BUDGET, resource.RLIM_INFINITY))
    return public_jobs.digits()


def digits_model():
    digits()
    return public_jobs.digits_model()


def fit(batch_size):
    """Samples per second of a short `fit` after two steps."""
    x, y = digits()
    try:
        model = digits_model()
        model.fit(x[: 2 * batch_size], y[: 2 * batch_size], batch_size, verbose=0)
        started = time.perf_counter()
        model.fit(x[:SAMPLES], y[:SAMPLES], batch_size, verbose=0)
        return SAMPLES / (time.perf_counter() - started)
    except FULL:
        print("OOM", flush=True)
        raise


class Tools:
    """Each returns the batch size that it chooses; its docstring is a part of the table."""

    def autofit(self):
        """fastest, and fastest at your batch size | tuned |
        limits, device and host; trials in processes of their own"""
        public_tunes.PROGRAMS = HERE
        public_tunes.FIXED = {}
        public_tunes.SPACES["digits"] = SIZES, "digits", {}
        result, _ = public_tunes.tune("digits")
        print(
            "OOM\n"
            * sum(
                trial["measurement"]["outcome"].endswith("oom")
                for trial in result["trials"]
            )
        )
        return result["fastest"]["config"]["batch_size"]

    def lightning(self):
        """largest power of two that fits | not | doubles until out of memory, in your process"""
        import lightning.pytorch
        import torch

        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.batch_size = 2
                self.network = digits_model()

            def train_dataloader(self):
                data = torch.utils.data.TensorDataset(*map(torch.as_tensor, digits()))
                return torch.utils.data.DataLoader(data, self.batch_size)

            def configure_optimizers(self):
                return torch.optim.Adam(self.network.parameters())

            def training_step(self, batch, index):
                return self.network.compute_loss(
                    y=batch[1], y_pred=self.network(batch[0], training=True)
                )

        return lightning.pytorch.tuner.Tuner(
            lightning.Trainer(logger=False)
        ).scale_batch_size(Net())

    def accelerate(self):
        """a batch size that fits | not | 10 % less after each failure, in your process"""
        from accelerate.utils import find_executable_batch_size

        return find_executable_batch_size(
            lambda batch_size: fit(batch_size) and batch_size, max(SIZES)
        )()

    def ultralytics(self):
        """largest batch for a share of the GPU | not | line through some sizes"""
        from ultralytics.utils.autobatch import check_train_batch_size

        return check_train_batch_size(digits_model(), imgsz=28, amp=False)

    def batchtune(self):
        """fastest, or largest that fits | not |
        line through some sizes; keeps 15 % of the RAM free"""
        import torch
        from batchtune import find_best_batch_size

        model = digits_model()
        device = torch.device("cpu")
        optimizer = torch.optim.Adam(model.parameters())
        data = torch.utils.data.TensorDataset(*map(torch.as_tensor, digits()))
        return find_best_batch_size(
            model, optimizer, model.compute_loss, data, device=device
        )

    def keras_tuner(self):
        """best of an objective that you write | if you write it |
        in your process; three failures in a row end it"""
        import keras_tuner

        class Program(keras_tuner.HyperModel):
            def build(self, hp):
                hp.Choice("batch_size", SIZES)
                return digits_model()

            def fit(self, hp, model, **kwargs):
                return {"rate": fit(hp.get("batch_size"))}

        search = keras_tuner.BayesianOptimization(
            Program(), keras_tuner.Objective("rate", "max"), TRIALS, seed=0
        )
        search.search()
        return search.get_best_hyperparameters()[0]["batch_size"]

    def optuna(self):
        """best of an objective that you write | if you write it |
        in your process; a failure ends it without `catch`"""
        import optuna

        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=0)
        )
        study.optimize(
            lambda trial: fit(trial.suggest_categorical("batch_size", SIZES)),
            TRIALS,
            catch=FULL,
        )
        return study.best_params["batch_size"]

    def grid(self):
        """fastest of what you list | if you list them | a process for each fit"""
        rates = {size: plain(size) for size in SIZES}
        print("OOM\n" * list(rates.values()).count(0.0))
        return max(rates, key=rates.get)


def plain(batch_size):
    """Samples per second of plain `fit`, 0 if it runs out of memory."""
    try:
        return timed(HERE.stem, "digits", "digits", {"batch_size": batch_size})[0]
    except subprocess.CalledProcessError:
        return 0.0


def ask(name):
    """Run a tool in a process of its own."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE, "--ask", name]
        ended = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True
        )
    text = ended.stdout + ended.stderr
    return {
        "seconds": time.perf_counter() - started,
        "ooms": len(re.findall(r"^OOM|Batch size \d+ failed", text, re.MULTILINE)),
        "said": re.findall(
            r"using default.*|^\w*Error: (?!Exception encountered).*",
            text,
            re.MULTILINE,
        )[-1:],
        "choice": None if ended.returncode else int(ended.stdout.split()[-1]),
    }


def show(frozen):
    """Print the table."""
    medians = {
        size: statistics.median(rates) for size, rates in frozen["rates"].items()
    }
    print(frozen["machine"], end="\n\n")
    print(
        "| | answers | workers, queue | memory | seconds | out of memory | batch | of the best |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in frozen["tools"].items():
        rate = medians.get(str(row["choice"]))
        # not the failures on the way to a choice
        said = [text for text in row["said"] if rate is None or "default" in text]
        of_best = "; ".join(
            [*([] if rate is None else [f"{rate / max(medians.values()):.2f}"]), *said]
        )
        told = f"{row['seconds']:.0f} | {row['ooms']} | {row['choice'] or 'none'} | {of_best}"
        columns = " ".join(getattr(Tools, name).__doc__.split())
        print(f"| {name.replace('_', '-')} | {columns} | {told} |")


def main():
    if sys.argv[1:2] == ["--ask"]:
        print(getattr(Tools(), sys.argv[2])())
        return
    if sys.argv[1:] == ["--run"]:
        os.environ["KERAS_BACKEND"] = "torch"
        before = os.getloadavg()[0]
        tools = {name: ask(name) for name in vars(Tools) if not name.startswith("_")}
        rates = {
            str(size): []
            for size in [
                SIZES[0],
                *(row["choice"] for row in tools.values() if row["choice"]),
            ]
        }
        for size in ROUNDS * list(rates):
            rates[size].append(plain(int(size)))
        machine = (
            f"{detect().processor}, {detect().cores} cores; load {before:.1f} before, "
            f"{os.getloadavg()[0]:.1f} after"
        )
        FROZEN.write_text(
            json.dumps({"machine": machine, "tools": tools, "rates": rates}, indent=1)
            + "\n"
        )
    show(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    main()
