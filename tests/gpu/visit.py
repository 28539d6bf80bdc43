"""Visit a machine with a GPU: stages by their value, each within its seconds, then all figures.

A folder gets the line of each stage (results.jsonl) and what the stages print (logs). Another call
goes on: README.md.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
# by their value: stages with the seconds that each may take, as long as they have time
ASKED = {
    "emptied-torch": 60,
    "tune-jax": 250,
    "rates-jax": 40,
    "tune-torch": 105,
    "rates-torch": 45,
    "cached-jax": 40,
    "failed-torch": 25,
    "beside-torch": 15,
    "beside-jax": 20,
    "largest-jax": 90,
    "snapshots-torch": 20,
    "short-jax": 60,
}
# these can be asked on each backend
ON_EACH = {"tune": 115, "rates": 65, "peaks": 50, "kill": 45, "limit": 75}
QUESTIONS = {
    "emptied": "Does emptying torch's cache slow a trial?",
    "tune": "Does a tune end by itself? What takes time?",
    "rates": "Are choice, rate, gain those of plain fits?",
    "cached": "How long is a first step, new and cached?",
    "failed": "Does a batch take more after a failed one?",
    "beside": "What does the driver count beyond the pool?",
    "largest": "Which batch is the largest? Is it allowed?",
    "snapshots": "How much more than it uses is reserved?",
    "short": "Do short runs differ less on fixed cores?",
    "peaks": "Are peaks and estimates those of plain fits?",
    "kill": "Is anything left of a tune that is killed?",
    "limit": "Does a limit hold? Is an excess recognised?",
}
# TensorFlow counts the memory of this allocator only; threads of torch that wait for others take
# their time
SMALL = {
    "VISIT_SMALL": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "OMP_NUM_THREADS": "1",
}
LEAST_SHARE = 0.75  # of its seconds, without which a stage does not begin
FOLDERS = {
    "XDG_DATA_HOME": "data",
    "XDG_CACHE_HOME": "caches",
    "JAX_COMPILATION_CACHE_DIR": "compiled",
}
# trials and plain fits share what JAX compiles, however small
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def planned(backends):
    """The stages of some backends in their order, with the seconds that each may take."""
    asked = {
        stage: most
        for stage, most in ASKED.items()
        if stage.rpartition("-")[2] in backends
    }
    each = {
        f"{stage}-{backend}": most
        for stage, most in ON_EACH.items()
        for backend in backends
    }
    return {
        **asked,
        **{stage: most for stage, most in each.items() if stage not in asked},
    }


def read(folder):
    """The lines of the stages that have ended, by their names."""
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {line["stage"]: line for line in lines}


def run(folder, stage, seconds, variables):
    """Run a stage; returns its line."""
    began = time.monotonic()
    name, _, backend = stage.rpartition("-")
    environment = {
        **os.environ,
        **variables,
        **CACHE,
        **{key: str(folder / value) for key, value in FOLDERS.items()},
    }
    environment |= {"KERAS_BACKEND": backend, "VISIT_FOLDER": str(folder)}
    log = folder / "logs" / f"{stage}.log"
    found = folder / "logs" / f"{stage}.jsonl"
    found.write_text("")
    with log.open("w") as output:
        command = [sys.executable, HERE / "stages.py", name, f"{seconds:.0f}", found]
        process = psutil.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            status = process.wait(seconds)
        except psutil.TimeoutExpired:
            status = f"ended after {seconds:.0f} s"
            for each in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
    rows = [json.loads(row) for row in found.read_text().splitlines()]
    figures = [row["figure"] for row in rows if "figure" in row]
    judged = [is_right for *_, is_right in figures if is_right is not None]
    reasons = [row["reason"] for row in rows if "reason" in row]
    if status:
        reasons = [str(status), *log.read_text(errors="replace").splitlines()[-3:]]
    if status:
        verdict = "error"
    elif not figures:
        verdict = "not here"
    elif not judged:
        verdict = "read"
    else:
        verdict = "right" if all(judged) else "wrong"
    return {
        "stage": stage,
        "verdict": verdict,
        "reason": " / ".join(reasons)[-600:],
        "seconds": round(time.monotonic() - began, 1),
        "figures": figures,
        "details": {
            key: value for row in rows for key, value in row.get("details", {}).items()
        },
    }


def table(lines, stages):
    """All questions, and what was read of them with what is expected, in 80 columns."""
    row = "  {:<44.44} {:>15.15} {:>14.14} {:>2.2}".format
    yield row("", "read", "expected", "")
    for stage in stages:
        line = lines.get(
            stage, {"figures": [], "verdict": "no time yet", "seconds": 0, "reason": ""}
        )
        question = QUESTIONS[stage.rpartition("-")[0]]
        yield f"{stage}, {line['verdict']}, {line['seconds']:.0f} s: {question}"[:80]
        for name, value, expected, is_right in line["figures"]:
            yield row(
                name, value, expected, {True: "ok", False: "NO", None: ""}[is_right]
            )
        if line["reason"]:
            yield f"  {line['reason']}"[:80]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="for all stages; the rest waits for another call",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir(), "autofit-visit"),
        help="for the results",
    )
    parser.add_argument("--backends", default="jax,torch", help="whose stages run")
    parser.add_argument(
        "--only", default="", help="stages, such as limit-jax,kill-torch"
    )
    parser.add_argument(
        "--small", action="store_true", help="rehearse on the CPU with small models"
    )
    parser.add_argument(
        "--slower", type=float, default=1.0, help="multiplies the seconds of each stage"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    until = time.monotonic() + 60 * given.minutes
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").touch()
    stages = planned(given.backends.split(","))
    chosen = {*(given.only.split(",") if given.only else stages)}
    if unknown := chosen - {*stages}:
        parser.error(
            f"no such stage: {', '.join(unknown)}; there are {', '.join(stages)}"
        )
    for stage, seconds in stages.items():
        ended = read(folder)
        left = until - time.monotonic()
        most = given.slower * seconds
        # these follow their tune, also in a later call
        is_ready = re.sub("^(rates|peaks|largest)", "tune", stage) in (stage, *ended)
        if stage in chosen - ended.keys() and is_ready and LEAST_SHARE * most <= left:
            line = json.dumps(
                run(folder, stage, min(most, left), SMALL if given.small else {})
            )
            print(line, flush=True)
            with (folder / "results.jsonl").open("a") as file:
                file.write(line + "\n")
    lines = read(folder)
    print("\n".join(table(lines, [stage for stage in stages if stage in chosen])))
    return int(any(line["verdict"] in ("wrong", "error") for line in lines.values()))


if __name__ == "__main__":
    sys.exit(main())
