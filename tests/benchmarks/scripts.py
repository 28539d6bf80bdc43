"""Public training scripts, unchanged: which can be tuned, and where they set the batch size.

    python tests/benchmarks/scripts.py                    print the frozen table
    python tests/benchmarks/scripts.py --run FOLDER       tune the scripts of a folder, in turn, and
    freeze scripts.json

Method. FOLDER has `examples/` of github.com/keras-team/keras-core at 3a464f90. The rule, fixed
before the first run: all scripts there that call `fit` and download nothing but the data sets of
`keras.datasets`, which are made up (`made_up/`). `autofit tune` runs each in an empty folder with
two trials, the second at another batch size, and five scripts once more on JAX and five on torch.
"Tuned" is a tune with an answer: in each trial, the batch that arrived at `fit` was the one asked.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
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
FILE = """\
script: {}
max_trials: 2
max_seconds: 60
options: {{min_updates: 1}}
"""
ON_OTHERS = 5


def chosen(folder):
    """The scripts of the rule, by their paths in the folder."""
    for path in sorted(folder.glob("examples/**/*.py")):
        text = path.read_text()
        if ".fit(" in text and not DOWNLOADS.search(text):
            yield path


def tune(path, folder, backend):
    """Tune a script; a row of the table."""
    with tempfile.TemporaryDirectory() as work:
        script = shutil.copy(path, work)
        file = pathlib.Path(work, "tune.yaml")
        file.write_text(FILE.format(pathlib.Path(script).name))
        variables = {
            "PYTHONPATH": os.pathsep.join([str(HERE / "made_up"), os.environ["PYTHONPATH"]]),
            "XDG_DATA_HOME": f"{work}/share",
            "KERAS_BACKEND": backend,
        }
        began = time.monotonic()
        done = subprocess.run(
            [f"{sys.prefix}/bin/autofit", "tune", file.name, "--output", "result.json"],
            cwd=work,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = round(time.monotonic() - began)
        result = pathlib.Path(work, "result.json")
        record = json.loads(result.read_text()) if result.exists() else {}
    place = ((record.get("description") or {}).get("places") or {}).get("batch_size", {})
    where = place.get("option") or ("added" if place.get("template", "{}") != "{}" else "line")
    said = " ".join(done.stderr.split()).removeprefix("autofit: ")
    return {
        "script": str(path.relative_to(folder)),
        "backend": backend,
        "exit": done.returncode,
        "seconds": seconds,
        "batch": place.get("value"),
        "where": f"{where} {place['span'][0]}" if place else "",
        "fastest": record.get("fastest", {}).get("config"),
        "ratio": record.get("fastest", {}).get("speedup", {}).get("ratio"),
        "said": "" if done.returncode == 0 else said[-300:],
    }


def run(folder):
    """Tune all scripts, and freeze the table after each."""
    scripts = list(chosen(folder))
    tasks = [(path, "tensorflow") for path in scripts]
    some = [path for path in scripts if "/tensorflow/" not in str(path)]
    tasks += [(path, "jax") for path in some[::4][:ON_OTHERS]]
    tasks += [(path, "torch") for path in some[2::4][:ON_OTHERS]]
    rows = []
    for path, backend in tasks:
        rows.append(tune(path, folder, backend))
        FROZEN.write_text(json.dumps(rows, indent=1) + "\n")
        print(row_of(rows[-1]), flush=True)


def row_of(row):
    answer = (
        f"{row['batch']} ({row['where']}) -> {row['fastest']['batch_size']}"
        if row["exit"] == 0
        else f"exit {row['exit']}: {row['said'][-90:]}"
    )
    name = pathlib.Path(row["script"]).name
    return f"{name[:44]:44} {row['backend']:10} {row['seconds']:4} s  {answer}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", metavar="FOLDER", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
    rows = json.loads(FROZEN.read_text())
    for row in rows:
        print(row_of(row))
    tuned = sum(row["exit"] == 0 for row in rows)
    print(f"\n{tuned} of {len(rows)} tuned")


if __name__ == "__main__":
    main()
