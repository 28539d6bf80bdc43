"""Public training scripts, unchanged: which are tuned, where the batch size is set, what it gains.

    python tests/benchmarks/scripts.py                    print the frozen table
    python tests/benchmarks/scripts.py --run FOLDER       tune the scripts of a folder, in turn
    python tests/benchmarks/scripts.py --gains FOLDER     time eight before and after the patch
                                      [--only NAME]       or one of them

Method. FOLDER has two folders. `examples/` is that of github.com/keras-team/keras-core at 3a464f90.
The rule, fixed before the first run: all scripts there that call `fit` and download nothing but the
data sets of `keras.datasets`, which are made up, in their numbers and shapes (`made_up/`).
`others/AUTHOR/` has ten scripts of nine other authors (`OTHERS`): of each repository that a search
for training on those data sets named, the first script by path that plain `python` runs here.
`autofit tune` runs each in an empty folder with two trials, the second at another batch size, and
five scripts once more on JAX and five on torch. "Tuned" is a tune with an answer: in each trial,
the batch that arrived at `fit` was the one asked. A script that has no answer is run by plain
`python`, too: one that fails there cannot be tuned. Most ran while other programs used both cores.

`--gains` tunes eight with autofit's defaults, has `patch` apply the answer, and times plain
`python` before and after, in turn: samples a second in the epochs of `fit`, without the first epoch
and without validations. A script whose second epoch does not begin within 300 s is not timed.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
FROZEN = HERE / "scripts.json"
DOWNLOADS = re.compile(
    r"tfds|keras_nlp|keras_cv|get_file|load_dataset|kaggle|tensorflow_hub|read_csv|wget|curl"
    r"|datasets import|requests|unzip|http\S*\.csv|read_tsv"
)
OTHERS = {
    "Casey1203": "DL-frame-for-TS at 6aae7eb0, example/autoencoder.py",
    "Declan-Dmello": "100_Days_Of_Code at 68216af0, CNN pooling layers.py",
    "blackhypothesis": "deep-learning-with-python at 36df5ad4, "
    "book/chapter_02/simple_first_network.py and, as it sets its backend, "
    "book/chapter_07/using_calbacks.py",
    "gokulsg": "sentimental_analysis at 973b9002, sentimental_analysis_lstm.py",
    "joesonchao": "PythonTest at 4eae5d9c, demo58.py",
    "lokeshmohanty": "mlops-pipeline at ef768cb4, src/train.py",
    "ma-xiaodong": "dl-with-python at f2d9b590, chap03/02_reuters.py",
    "suguna373": "dllaexp1 at eda497af, exp1.py",
    "wqf-c": "tfLearn at e1841f45, sentiment_analysis_layer.py",
}
TWO_TRIALS = """\
script: {}
max_trials: 2
max_seconds: 300
options: {{min_updates: 1}}
"""
ON_OTHER_BACKENDS = 5
PLAIN_SECONDS = 10  # of epochs of fit after the first
MOST_PLAIN_SECONDS = "300"  # of the script
ROUNDS = 2
# every third of those that were tuned on TensorFlow, or on the backend that they set
GAINS = (
    "examples/demo_custom_layer_backend_agnostic.py",
    "examples/demo_subclass.py",
    "examples/keras_io/tensorflow/generative/vae.py",
    "examples/keras_io/vision/cct.py",
    "examples/keras_io/vision/mnist_convnet.py",
    "others/Casey1203/autoencoder.py",
    "others/blackhypothesis/using_calbacks.py",
    "others/ma-xiaodong/02_reuters.py",
)
# whose patch is printed
IN_FULL = "others/Casey1203/autoencoder.py"


def chosen(folder):
    """The scripts of the rule."""
    for path in sorted(folder.glob("examples/**/*.py")):
        text = path.read_text()
        if ".fit(" in text and not DOWNLOADS.search(text):
            yield path
    yield from sorted(
        path for author in OTHERS for path in folder.glob(f"others/{author}/*.py")
    )


def in_environment(arguments, work, backend, **others):
    """Run a command in a script's folder, on a backend, with the data that are made up."""
    folders = [str(HERE / "made_up"), *os.environ["PYTHONPATH"].split(os.pathsep)]
    return subprocess.run(
        arguments,
        cwd=work,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folders),
            "XDG_DATA_HOME": f"{work}/share",
            "KERAS_BACKEND": backend,
            "MPLBACKEND": "agg",
            **others,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def tune(work, script, backend, file=None):
    """Tune a script by a file or by the defaults: what the command did, its record, seconds."""
    began = time.monotonic()
    done = in_environment(
        [
            f"{sys.prefix}/bin/autofit",
            "tune",
            file or script,
            "--output",
            "result.json",
        ],
        work,
        backend,
    )
    seconds = round(time.monotonic() - began)
    result = pathlib.Path(work, "result.json")
    record = json.loads(result.read_text()) if result.exists() else {}
    return done, record, seconds


def with_two_trials(path, folder, backend):
    """Tune a script with two trials; a row of the table."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(path, work)
        pathlib.Path(work, "tune.yaml").write_text(
            TWO_TRIALS.format(json.dumps(path.name))
        )
        done, record, seconds = tune(work, path.name, backend, "tune.yaml")
        plain = ""
        if done.returncode:
            run = in_environment(
                ["timeout", "100", sys.executable, path.name], work, backend
            )
            plain = "runs" if run.returncode in (0, 124) else run.stderr.strip()[-200:]
    place = ((record.get("description") or {}).get("places") or {}).get(
        "batch_size", {}
    )
    where = place.get("option") or (
        "added" if place.get("template", "{}") != "{}" else "line"
    )
    said = " ".join(done.stderr.split()).removeprefix("autofit: ")
    return {
        "script": str(path.relative_to(folder)),
        "backend": backend,
        "exit": done.returncode,
        "seconds": seconds,
        "batch": place.get("value"),
        "where": f"{where} {place['span'][0]}" if place else "",
        "tried": [trial["config"]["batch_size"] for trial in record.get("trials", ())],
        "fastest": (record.get("fastest") or {}).get("config"),
        "said": "" if done.returncode == 0 else said[-400:],
        "plain": plain,
    }


def run(folder):
    """Tune all scripts, and freeze the table after each."""
    scripts = list(chosen(folder))
    tasks = [(path, "tensorflow") for path in scripts]
    some = [
        path
        for path in scripts
        if "/tensorflow/" not in str(path) and "others" not in path.parts
    ]
    tasks += [(path, "jax") for path in some[::3][:ON_OTHER_BACKENDS]]
    tasks += [(path, "torch") for path in some[1::3][:ON_OTHER_BACKENDS]]
    rows = []
    for path, backend in tasks:
        rows.append(with_two_trials(path, folder, backend))
        freeze("scripts", rows)
        print(row_of(rows[-1]), flush=True)


def plain_rate(work, script, batch):
    """Samples a second of `fit` in plain python; None if its epochs are too few or too long."""
    done = in_environment(
        ["timeout", MOST_PLAIN_SECONDS, sys.executable, script],
        work,
        "tensorflow",
        TIME_FIT_SECONDS=str(PLAIN_SECONDS),
    )
    if done.returncode:
        return None
    return json.loads(done.stdout.splitlines()[-1])["steps_per_second"] * batch


def gain(path, folder):
    """Tune a script by the defaults, and time it before and after the patch."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(path, work)
        done, record, seconds = tune(work, path.name, "tensorflow")
        row = {
            "script": str(path.relative_to(folder)),
            "exit": done.returncode,
            "seconds": seconds,
        }
        if done.returncode:
            return {**row, "said": done.stderr[-400:]}
        own = record["description"]["places"]["batch_size"]["value"]
        config = record["fastest"]["config"]
        shutil.copy(path, pathlib.Path(work, "before.py"))
        found = pathlib.Path(work, "result.fastest.patch")
        if not found.exists():  # the script as it is
            return {**row, "own": own, "config": config, "before": [], "after": []}
        patch = found.read_text()
        applied = subprocess.run(
            ["patch", "-p0"], cwd=work, input=patch, text=True, check=True
        )
        before, after = [], []
        for _ in range(ROUNDS):
            before.append(plain_rate(work, "before.py", own))
            if before == [None]:
                break
            after.append(plain_rate(work, path.name, config["batch_size"]))
        return {
            **row,
            "patched": applied.returncode == 0,
            "patch": patch,
            "own": own,
            "config": config,
            "told": record["fastest"]["speedup"],
            "before": before,
            "after": after,
        }


def gains(folder, only):
    """Time eight scripts, or one of them, before and after the patch."""
    frozen = json.loads(FROZEN.read_text()).get("gains", ())
    rows = {row["script"]: row for row in frozen}
    for name in GAINS:
        if only in name:
            rows[name] = gain(folder / name, folder)
            freeze("gains", list(rows.values()))
            print(gain_of(rows[name]), flush=True)


def freeze(part, rows):
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    FROZEN.write_text(json.dumps({**frozen, part: rows}, indent=1) + "\n")


def row_of(row):
    if row["exit"] == 0:
        answer = f"{row['batch']} ({row['where']}) -> {row['fastest']['batch_size']}"
    elif row["plain"] not in ("", "runs"):
        answer = f"fails in plain python: {' '.join(row['plain'].split())[-60:]}"
    else:
        answer = f"exit {row['exit']}: {row['said'][-90:]}"
    name = pathlib.Path(row["script"]).name
    return f"{name[:44]:44} {row['backend']:10} {row['seconds']:4} s  {answer}"


def gain_of(row):
    name = pathlib.Path(row["script"]).name
    if row["exit"]:
        return f"{name[:44]:44} exit {row['exit']}: {row['said'][-90:]}"
    if not row["before"]:
        return f"{name[:44]:44} {row['own']}: nothing to change"
    if None in row["before"] + row["after"]:
        return f"{name[:44]:44} {row['own']}: not timed: its epochs are too few or too long"
    told = row["told"]
    ratios = [
        after / before
        for before, after in zip(row["before"], row["after"], strict=True)
    ]
    answer = f"{row['own']} -> {row['config']['batch_size']}"
    promise = "no gain"
    if told["ratio"] is not None and told["low"] is not None:
        promise = f"{told['ratio']:.2f} ({told['low']:.2f} to {told['high']:.2f})"
    timed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{name[:44]:44} {answer}: told {promise}, timed {statistics.mean(ratios):.2f} ({timed})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--gains", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--only", metavar="NAME", default="")
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
    elif arguments.gains:
        gains(arguments.gains, arguments.only)
    frozen = json.loads(FROZEN.read_text())
    for row in frozen["scripts"]:
        print(row_of(row))
    print()
    rows = [row for row in frozen["scripts"] if row["plain"] in ("", "runs")]
    for name, backends in (
        ("TensorFlow", ["tensorflow"]),
        ("JAX and torch", ["jax", "torch"]),
    ):
        of_backend = [row for row in rows if row["backend"] in backends]
        exits = [row["exit"] for row in of_backend]
        print(
            f"{name}: {len(of_backend)} that plain python runs here: {exits.count(0)} tuned, "
            f"{exits.count(2)} refused, {exits.count(1)} without an answer"
        )
    print(f"{len(frozen['scripts']) - len(rows)} fail in plain python here\n")
    for row in frozen.get("gains", ()):
        print(gain_of(row))
    for row in frozen.get("gains", ()):
        if row["script"] == IN_FULL:
            print(f"\n{OTHERS['Casey1203']}; it was tuned in {row['seconds']} s")
            for when in ("before", "after"):
                rates = (f"{rate:,.0f}" for rate in row[when])
                print(f"samples a second {when} the patch: {', '.join(rates)}")
            print(f"\n{row['patch']}", end="")


if __name__ == "__main__":
    main()
