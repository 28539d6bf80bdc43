"""Kill tunes and their trials at random moments, and fill, lock and stop what they need.

Nothing is lost, left or wrong.

    python tests/faults/chaos.py [--tunes 40] [--others 2] [--faults hang,segfault]
                                 [--seed 0] [--parallel 2]

`--tunes`: so many tunes of the command line are killed: the driver, its trial server,
or both. `--others`: so many tunes for each other fault (OTHERS). The same command then
runs once more, undisturbed. Checked after each tune: 1. both runs end, the second with
a result; 2. no process is left, nor any file for temporary files, and at the end none
in /dev/shm; 3. no trial that was printed or stored is lost or changed; 4. the fault
explains each outcome; 5. a run ends with one message at most, no traceback of
autofit's, and an exit status that the fault explains.

It prints a line of JSON for each tune, and the counts. It needs Linux; full disks need
root, and are left out without. On two cores, ten tunes take two minutes; on torch less
(KERAS_BACKEND=torch): nothing is compiled.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autofit.records.states import Outcome  # noqa: E402  # the repository is not installed everywhere
from autofit.storage import connection  # noqa: E402  # the repository is not installed everywhere

AUTOFIT = str(Path(sys.executable).parent / "autofit")
MARK = "AUTOFIT_CHAOS_RUN"
# of a run: many times what it takes
MOST_SECONDS = 300
# until all that a run left has ended: many times what that takes
LEFT_SECONDS = 20
KILLS = {
    "driver-kill": 9,
    "driver-term": 15,
    "driver-hup": 1,
    "driver-int": 2,
    "server-kill": 9,
    "both-kill": 9,
}
OTHERS = {
    "trial-kill": Outcome.CRASHED,
    "worker-kill": Outcome.CRASHED,
    "segfault": Outcome.CRASHED,
    "hang": Outcome.TIMEOUT,
    "full-temporary": None,
    "full-storage": None,
    "locked-storage": Outcome.OK,
}
"""Each fault with the outcome that it may cause.

A full disk may cause any failure but an OOM of the device.
"""
# With as many seconds for each batch, the larger one is the faster: that of the
# baseline, so that nothing is a gain.
JOB = """
build_model: {program}:build_model
data: {program}:pydataset
storage: {storage}
space:
  batch_size: [8, 16]
  workers: [2]
  max_queue_size: [4]
  use_multiprocessing: [{processes}]
baseline: {{batch_size: 16}}
max_trials: 2
options: {{max_trial_seconds: 40}}
"""


def left_of(mark, folder):
    """What is left of a run after some seconds, in words; ends its processes.

    They have the mark in their environment.
    """
    end = time.monotonic() + LEFT_SECONDS
    while True:
        every = psutil.process_iter(["environ", "status", "cmdline"])
        processes = [
            one
            for one in every
            if (one.info["environ"] or {}).get(MARK) == mark
            and one.info["status"] != "zombie"
        ]
        files = [
            path.name
            for path in folder.iterdir()
            if not path.name.startswith(("filler", "autofit-cpu"))
        ]
        if not (processes or files) or time.monotonic() > end:
            break
        time.sleep(0.05)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [
        f"2: left: {one}"
        for one in (*(process.info["cmdline"] for process in processes), *files)
    ]


class Tune:
    """A tune under a fault: its folder, its processes, and what is wrong."""

    def __init__(self, seed, fault, after):
        self.draw = random.Random(seed)
        self.fault = fault
        self.after = after
        self.mark = f"{os.getpid()}-{seed}"
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.temporary = self.folder / "tmp"
        self.stored = self.folder / "stored"
        # Only SQLite locks; a journal file that a full disk has torn cannot be read
        # again, which autofit says.
        self.kind = (
            "sqlite"
            if fault.endswith("storage")
            else self.draw.choice(("sqlite", "journal"))
        )
        self.storage = (
            str(self.stored / "t.db")
            if self.kind == "sqlite"
            else f"journal:{self.stored / 't.log'}"
        )
        self.problems = []
        self.is_hit = False
        self.statuses = []
        self.outcomes = {}
        self.processes = fault == "worker-kill" or self.draw.random() < 0.5

    def play(self):
        """Run twice, the first time under the fault."""
        job = JOB.format(
            program=ROOT / "tests/contracts/rows.py",
            storage=self.storage,
            processes=self.processes,
        )
        (self.folder / "job.yaml").write_text(job)
        mounted = {
            "full-temporary": (self.temporary, "160m"),
            "full-storage": (self.stored, "8m"),
        }.get(self.fault)
        for folder in (self.temporary, self.stored):
            folder.mkdir()
        if mounted:
            subprocess.run(
                [
                    "mount",
                    "-t",
                    "tmpfs",
                    "-o",
                    f"size={mounted[1]}",
                    "tmpfs",
                    mounted[0],
                ],
                check=True,
            )
        try:
            self.run(self.inject if self.fault else None)
            first = self.trials()
            explained = {Outcome.OK, OTHERS.get(self.fault, Outcome.CRASHED)}
            self.check_outcomes(
                first, set(Outcome) - {Outcome.DEVICE_OOM} if mounted else explained
            )
            self.run(None)
            second = self.trials()
            self.problems += [
                f"3: {one} is lost or changed"
                for one in first
                if first[one] != second.get(one)
            ]
            self.check_outcomes(
                {one: second[one] for one in set(second) - set(first)}, {Outcome.OK}
            )
            self.outcomes = Counter(outcome_of(trial) for trial in second.values())
            if self.statuses[-1]:
                self.problems.append(
                    f"1: the same command ended with {self.statuses[-1]}"
                )
        finally:
            if mounted:
                subprocess.run(["umount", "-l", mounted[0]], check=False)
        if not self.problems:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, inject):
        """Run the command, with a fault at its moment, and check what it printed and left."""
        output = self.folder / f"output-{len(self.statuses)}"
        environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            MARK: self.mark,
            "OMP_NUM_THREADS": "1",
        }
        with output.open("wb") as file:
            command = [AUTOFIT, "tune", "job.yaml"]
            ends = {"stdout": file, "stderr": file, "start_new_session": True}
            process = psutil.Popen(command, cwd=self.folder, env=environment, **ends)
        if inject is not None:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(self.after)
            inject(process)
        try:
            process.wait(MOST_SECONDS)
        except psutil.TimeoutExpired:
            self.problems.append(
                f"1: it did not end: {process.children(recursive=True)}"
            )
            process.kill()
        self.statuses.append(process.wait())
        self.problems += left_of(self.mark, self.temporary)
        for filler in [
            file
            for folder in (self.temporary, self.stored)
            for file in folder.glob("filler*")
        ]:
            filler.unlink()
        self.check_output(output.read_text(errors="replace"))

    def inject(self, driver):
        """Make the fault happen, once there is what it hits."""
        role, _, kind = self.fault.partition("-")
        number = {"segfault": signal.SIGSEGV, "hang": signal.SIGSTOP}.get(
            role, KILLS.get(self.fault, signal.SIGKILL)
        )
        if role == "full":
            self.fill(self.temporary if kind == "temporary" else self.stored)
        elif role == "locked":
            self.lock()
        while (
            role not in ("full", "locked") and driver.poll() is None and not self.is_hit
        ):
            with contextlib.suppress(psutil.Error):
                servers = [
                    one
                    for one in driver.children()
                    if "autofit.trial.server" in " ".join(one.cmdline())
                ]
                trials = [trial for server in servers for trial in server.children()]
                workers = [
                    worker
                    for trial in trials
                    for worker in trial.children(recursive=True)
                ]
                both = servers and [*servers, driver]
                hit = {
                    "driver": [driver],
                    "server": servers,
                    "both": both,
                    "worker": workers[:1],
                }.get(role, trials)
                for one in hit:
                    one.send_signal(number)
                    self.is_hit = True
            time.sleep(0.01)

    def fill(self, folder):
        for size in (2**20, 4096):
            with (
                contextlib.suppress(OSError),
                (folder / f"filler{size}").open("wb", buffering=0) as file,
            ):
                while file.write(b"\1" * size):
                    self.is_hit = True

    def lock(self):
        file = self.stored / "t.db"
        if file.exists():
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(sqlite3.connect(file)) as connected,
            ):
                connected.execute("BEGIN EXCLUSIVE")
                self.is_hit = True
                time.sleep(self.draw.uniform(1, 8))

    def trials(self):
        """The stored trials, by study and number."""
        file = connection.file_of(self.storage)
        if file is not None and not file.exists():
            return {}
        with connection.opened(self.storage) as backend:
            stored = {
                study.study_name: backend.get_all_trials(study._study_id)
                for study in backend.get_all_studies()
            }
        every = [(name, trial) for name, trials in stored.items() for trial in trials]
        return {
            (name, trial.number): trial.user_attrs["trial"]
            for name, trial in every
            if "trial" in trial.user_attrs
        }

    def check_outcomes(self, trials, explained):
        self.problems += [
            f"4: stored {one}"
            for one in set(map(outcome_of, trials.values())) - explained
        ]

    def check_output(self, output):
        """Laws 3 and 5."""
        printed = len(
            re.findall(
                r"^batch .*: (?:ok|device_oom|host_oom|crashed|timeout), ",
                output,
                re.MULTILINE,
            )
        )
        if "the trials cannot be stored: " not in output and printed > (
            known := len(self.trials())
        ):
            self.problems.append(
                f"3: {printed} trials were printed, {known} are stored"
            )
        if f'File "{ROOT}/autofit/' in output:
            self.problems.append("5: a traceback of autofit's")
        if len(re.findall(r"^(?:autofit: |Interrupted)", output, re.MULTILINE)) > 1:
            self.problems.append("5: several messages")
        number = KILLS.get(self.fault, 0) if not self.fault.startswith("server") else 0
        if self.statuses[-1] not in {0, -number, 128 + number} | (
            set() if number else {1, 2}
        ):
            self.problems.append(f"5: exit status {self.statuses[-1]}")


def outcome_of(trial):
    return Outcome(trial["measurement"]["outcome"])


def play_tune(seed, fault, after):
    """Run a tune under a fault; returns it with what is wrong."""
    tune = Tune(seed, fault, after)
    try:
        tune.play()
    except Exception as error:  # a law that could not be checked is not kept
        tune.problems.append(f"the run could not be checked: {error!r}")
    line = {
        "seed": seed,
        "fault": fault,
        "after": round(after, 1),
        "hit": tune.is_hit,
        "statuses": tune.statuses,
    }
    line |= {"outcomes": tune.outcomes, "storage": tune.kind}
    print(
        json.dumps(
            line
            | (
                {"problems": tune.problems, "folder": str(tune.folder)}
                if tune.problems
                else {}
            )
        ),
        flush=True,
    )
    return tune


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tunes", type=int, default=40, help="tunes to kill (default: %(default)s)"
    )
    parser.add_argument(
        "--others",
        type=int,
        default=2,
        help="tunes for each other fault (default: %(default)s)",
    )
    parser.add_argument(
        "--faults",
        default=",".join(OTHERS),
        help="the other faults (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--parallel", type=int, default=2, help="tunes at once (default: %(default)s)"
    )
    given = parser.parse_args()
    # a background job of a shell ignores Ctrl-C, with its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shared = {*Path("/dev/shm").iterdir()}
    draw = random.Random(given.seed)
    others = [
        name
        for name in given.faults.split(",")
        if os.geteuid() == 0 or not name.startswith("full")
    ]
    faults = [
        [*KILLS][number % len(KILLS)] for number in range(given.tunes)
    ] + given.others * others
    began = time.monotonic()
    undisturbed = play_tune(f"{given.seed}-none", "", 0.0)
    usual = time.monotonic() - began  # the second run prints the result of the first
    with ThreadPoolExecutor(given.parallel) as pool:
        seeds = [f"{given.seed}-{number}" for number in range(len(faults))]
        done = [
            undisturbed,
            *pool.map(
                play_tune,
                seeds,
                faults,
                [draw.uniform(0.2, 0.85 * usual) for _ in faults],
            ),
        ]
    failures = sum(bool(tune.problems) for tune in done)
    hits = Counter(tune.fault for tune in done if tune.is_hit)
    if left := {*Path("/dev/shm").iterdir()} - shared:
        failures += 1
        print(f"2: left in /dev/shm: {', '.join(map(str, left))}")
    print(f"{len(done)} tunes, each resumed; hit: {dict(hits)}; {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
