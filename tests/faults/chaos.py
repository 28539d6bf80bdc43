"""Kill tunes and single trials at random moments, and fill, lock and stop what they need: nothing is lost, left or wrong.

    python tests/faults/chaos.py [--tunes 40] [--trials 400] [--others 2] [--faults hang,segfault] [--seed 0] [--parallel 2]

`--tunes`: so many tunes of the command line are killed (the driver by a signal, its trial server, or both). `--others`: so
many tunes for each other fault: a trial or a worker killed, a segfault, a hang, a full disk for temporary files or for the
storage, a locked storage. The same command then runs once more, undisturbed. Checked after each tune:

1. both runs end, and the second with a result;
2. no process of theirs is left, nor any file in the folder for temporary files; at the end, none in /dev/shm;
3. no trial that was printed or stored is lost or changed;
4. every stored outcome is one that the fault explains;
5. a run ends with at most one message, without a traceback of autofit's, and with an exit status that the fault explains.

`--trials`: so many single trials of a warm server are killed. Checked after each: the outcome names the signal, no process
is left below the server, and it is still the same server; after each tenth, an undisturbed trial is OK.

A line of JSON for each tune, and at the end the counts by fault. It needs Linux; full disks need root, and are left out
without it. On two cores, ten tunes take about two minutes and a hundred trials about four; on torch, which needs no
compiling, less: KERAS_BACKEND=torch.
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
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autofit.records.states import Outcome, Role  # noqa: E402  # the repository is not installed everywhere
from autofit.records.trial import FitConfig, Limits, TrialSpec  # noqa: E402
from autofit.storage import connection  # noqa: E402
from autofit.trial.launcher import ProcessLauncher, run_to_end  # noqa: E402
from autofit.workload.reference import Reference  # noqa: E402
from autofit.workload.workload import Workload  # noqa: E402

AUTOFIT, MARK = str(Path(sys.executable).parent / "autofit"), "AUTOFIT_CHAOS_RUN"
ALONE = "AUTOFIT_CHAOS_MOUNTS"
MOST_SECONDS, LEFT_SECONDS = 300, 20  # of a run, and until all that it left has ended: many times what they take
KILLS = {"driver-kill": 9, "driver-term": 15, "driver-hup": 1, "driver-int": 2, "server-kill": 9, "both-kill": 9}
OTHERS = {
    "trial-kill": Outcome.CRASHED,
    "worker-kill": Outcome.CRASHED,
    "segfault": Outcome.CRASHED,
    "hang": Outcome.TIMEOUT,
    "full-temporary": None,
    "full-storage": None,
    "locked-storage": Outcome.OK,
}
"""Each fault with the outcome that it may cause; a full disk may cause any failure but an OOM of the device."""
JOBS = """
import time

import keras
import numpy as np


def build():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Rows(keras.utils.PyDataset):
    def __init__(self, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.0003 * self.batch_size**1.5)  # a larger batch is no gain
        return np.ones((self.batch_size, 8), "float32"), np.ones((self.batch_size, 1), "float32")
"""
JOB = """
build_model: jobs.py:build
data: jobs.py:Rows
storage: {storage}
space: {{batch_size: [8, 16], workers: [2], max_queue_size: [4], use_multiprocessing: [{processes}]}}
baseline: {{batch_size: 8}}
max_trials: 2
options: {{max_trial_seconds: 40}}
"""


def marked(mark):
    """All processes whose environment has this mark, wherever they are in the tree."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def files(folder):
    """The files that should not be left in a folder for temporary files."""
    return [path.name for path in folder.iterdir() if not path.name.startswith(("filler", "autofit-cpu"))]


def left_of(mark, folder):
    """What is left of a run after some seconds, in words; ends these processes."""
    ended = time.monotonic()
    while (found := [*marked(mark), *files(folder)]) and time.monotonic() - ended < LEFT_SECONDS:
        time.sleep(0.05)
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [f"2: left: {one}" for one in found]


class Tune:
    """A tune under a fault: its folder, its processes, and what is wrong."""

    def __init__(self, seed, fault, after):
        self.draw, self.fault, self.after = random.Random(seed), fault, after
        self.mark, self.folder = f"{os.getpid()}-{seed}", Path(tempfile.mkdtemp(prefix="chaos-"))
        self.temporary, self.stored = self.folder / "tmp", self.folder / "stored"
        self.kind = "sqlite" if fault == "locked-storage" else self.draw.choice(("sqlite", "journal"))
        self.storage = str(self.stored / "t.db") if self.kind == "sqlite" else f"journal:{self.stored / 't.log'}"
        self.problems, self.is_hit, self.statuses, self.outcomes = [], False, [], {}
        self.processes = fault == "worker-kill" or self.draw.random() < 0.5

    def play(self):
        """Run twice, the first time under the fault."""
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "job.yaml").write_text(JOB.format(storage=self.storage, processes=str(self.processes).lower()))
        mounted = {"full-temporary": (self.temporary, "160m"), "full-storage": (self.stored, "8m")}.get(self.fault)
        for folder in (self.temporary, self.stored):
            folder.mkdir()
        if mounted:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mounted[1]}", "tmpfs", mounted[0]], check=True)
        try:
            self.run(self.inject if self.fault else None)
            first = self.trials()
            explained = {Outcome.OK, OTHERS.get(self.fault, Outcome.CRASHED)}
            self.check_outcomes(first, set(Outcome) - {Outcome.DEVICE_OOM} if mounted else explained)
            self.run(None)
            second = self.trials()
            self.problems += [f"3: {one} is lost or changed" for one in first if first[one] != second.get(one)]
            self.check_outcomes({one: second[one] for one in set(second) - set(first)}, {Outcome.OK})
            self.outcomes = Counter(outcome_of(trial) for trial in second.values())
            if self.statuses[-1]:
                self.problems.append(f"1: the same command ended with {self.statuses[-1]}")
        finally:
            if mounted:
                subprocess.run(["umount", "-l", mounted[0]], check=False)
        if not self.problems:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, inject):
        """Run the command, with a fault at its moment, and check what it printed and left."""
        output = self.folder / f"output-{len(self.statuses)}"
        environment = {**os.environ, "TMPDIR": str(self.temporary), MARK: self.mark, "OMP_NUM_THREADS": "1"}
        with output.open("wb") as file:
            process = psutil.Popen(
                [AUTOFIT, "tune", "job.yaml"],
                cwd=self.folder,
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        if inject is not None:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(self.after)
            inject(process)
        try:
            process.wait(MOST_SECONDS)
        except psutil.TimeoutExpired:
            self.problems.append(f"1: it did not end: {process.children(recursive=True)}")
            process.kill()
        self.statuses.append(process.wait())
        self.problems += left_of(self.mark, self.temporary)
        for filler in [file for folder in (self.temporary, self.stored) for file in folder.glob("filler*")]:
            filler.unlink()
        self.check_output(output.read_text(errors="replace"))

    def roles(self, driver):
        """The processes of the run by their role."""
        found = {"driver": [driver], "server": [], "trial": [], "worker": []}
        with contextlib.suppress(psutil.Error):
            found["server"] = [one for one in driver.children() if "autofit.trial.server" in " ".join(one.cmdline())]
            for server in found["server"]:
                found["trial"] = server.children()
                found["worker"] = [one for trial in found["trial"] for one in trial.children(recursive=True)]
        return found

    def inject(self, driver):
        """Make the fault happen, once there is what it hits."""
        role, _, kind = self.fault.partition("-")
        if role == "full":
            self.fill(self.temporary if kind == "temporary" else self.stored)
        elif role == "locked":
            self.lock()
        else:
            number = {"segfault": signal.SIGSEGV, "hang": signal.SIGSTOP}.get(role) or KILLS.get(self.fault, signal.SIGKILL)
            while driver.is_running() and driver.status() != psutil.STATUS_ZOMBIE and not self.is_hit:
                roles = self.roles(driver)
                hit = {"both": [*roles["server"], driver]}.get(role) or roles[role if role in roles else "trial"][-1:]
                for one in hit:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.send_signal(number)
                        self.is_hit = True
                time.sleep(0.01)

    def fill(self, folder):
        for size in (2**20, 4096):
            with contextlib.suppress(OSError), (folder / f"filler{size}").open("wb", buffering=0) as file:
                while file.write(b"\1" * size):
                    self.is_hit = True

    def lock(self):
        file = self.stored / "t.db"
        if file.exists():
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connected:
                connected.execute("BEGIN EXCLUSIVE")
                self.is_hit = True
                time.sleep(self.draw.uniform(1, 8))

    def trials(self):
        """The stored trials, by study and number."""
        file = connection.file_of(self.storage)
        if file is not None and not file.exists():
            return {}
        with connection.opened(self.storage) as backend:
            stored = {study.study_name: backend.get_all_trials(study._study_id) for study in backend.get_all_studies()}
        return {
            (name, trial.number): trial.user_attrs["trial"]
            for name, trials in stored.items()
            for trial in trials
            if "trial" in trial.user_attrs
        }

    def check_outcomes(self, trials, explained):
        self.problems += [f"4: stored {one}" for one in set(map(outcome_of, trials.values())) - explained]

    def check_output(self, output):
        """Laws 3 and 5."""
        printed = len(re.findall(r"^batch .*: (?:ok|device_oom|host_oom|crashed|timeout), ", output, re.MULTILINE))
        if "the trials cannot be stored: " not in output and printed > (known := len(self.trials())):
            self.problems.append(f"3: {printed} trials were printed, {known} are stored")
        if re.search(r'File "[^"]*/autofit/(?!tests)', output):
            self.problems.append("5: a traceback of autofit's")
        if len(re.findall(r"^(?:autofit: |Interrupted)", output, re.MULTILINE)) > 1:
            self.problems.append("5: several messages")
        number = KILLS.get(self.fault, 0) if not self.fault.startswith("server") else 0
        if self.statuses[-1] not in {0, -number, 128 + number} | (set() if number else {1, 2}):
            self.problems.append(f"5: exit status {self.statuses[-1]}")


def outcome_of(trial):
    """The outcome of a stored trial."""
    return Outcome(trial["measurement"]["outcome"])


def play_tune(seed, fault, after):
    """Run a tune under a fault; returns it with what is wrong."""
    tune = Tune(seed, fault, after)
    try:
        tune.play()
    except Exception as error:  # a law that could not be checked is not kept
        tune.problems.append(f"the run could not be checked: {error!r}")
    line = {"seed": seed, "fault": fault, "after": round(after, 1), "hit": tune.is_hit, "statuses": tune.statuses}
    line |= {"outcomes": tune.outcomes, "storage": tune.kind}
    print(json.dumps(line | ({"problems": tune.problems, "folder": str(tune.folder)} if tune.problems else {})), flush=True)
    return tune


def kill_trials(count, seed):
    """Kill so many single trials of a warm server; returns the signals that hit with the outcomes, and what is wrong."""
    draw, hits, problems = random.Random(seed), Counter(), []
    folder, mark = Path(tempfile.mkdtemp(prefix="chaos-")), f"{os.getpid()}-trials"
    (folder / "jobs.py").write_text(JOBS)
    (folder / "tmp").mkdir()
    os.environ |= {"TMPDIR": str(folder / "tmp"), MARK: mark}
    tempfile.tempdir = None
    workload = Workload(*(Reference(f"jobs.py:{name}", str(folder)) for name in ("build", "Rows")))
    with ProcessLauncher(workload) as launcher:
        server = psutil.Process(launcher.warm().pid)

        def run(processes, after=None, number=None):
            """A trial, and whether it was hit."""
            spec = TrialSpec(Role.MEASURE, FitConfig(8, 2, 4, processes), Limits(None, 2**34), MOST_SECONDS, 0.3)
            ended, hit = threading.Event(), []

            def kill():
                ended.wait(after)
                while not ended.is_set() and not hit:
                    with contextlib.suppress(psutil.Error):
                        for process in server.children():
                            process.send_signal(number)
                            hit.append(process)

            killer = threading.Thread(target=kill)
            if number is not None:
                killer.start()
            began, measured = time.monotonic(), run_to_end(launcher.run(spec))
            ended.set()
            if number is not None:
                killer.join()
            return measured, bool(hit), time.monotonic() - began

        usual = max(run(processes)[2] for processes in (False, True))
        while sum(hits.values()) < count and len(problems) < 10:
            number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT))
            measured, is_hit, _ = run(draw.random() < 0.3, draw.uniform(0, usual), number)
            was_ok, evidence = measured.outcome is Outcome.OK, measured.evidence
            if not was_ok and (not is_hit or (measured.outcome, evidence.signal) != (Outcome.CRASHED, number.name)):
                problems.append(f"{number.name} at trial {sum(hits.values())}: {measured.outcome}, {evidence}")
            if is_hit:
                hits[f"{number.name} {'after its last message' if was_ok else 'crashed'}"] += 1
            if left := server.children(recursive=True):
                problems.append(f"left below the server: {left}")
            if launcher.warm().pid != server.pid:
                raise SystemExit("the server is another one after a trial was killed")
            if sum(hits.values()) % 10 == 0 and (ran := run(processes=False)[0]).outcome is not Outcome.OK:
                problems.append(f"an undisturbed trial: {ran.outcome}, {ran.evidence}")
    return hits, problems + left_of(mark, folder / "tmp")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=40, help="tunes to kill (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=400, help="single trials to kill (default: %(default)s)")
    parser.add_argument("--others", type=int, default=2, help="tunes for each other fault (default: %(default)s)")
    parser.add_argument("--faults", default=",".join(OTHERS), help="the other faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=2, help="tunes at once (default: %(default)s)")
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job of a shell ignores Ctrl-C, with its children
    shared, draw = {*Path("/dev/shm").iterdir()}, random.Random(given.seed)
    others = [name for name in given.faults.split(",") if os.geteuid() == 0 or not name.startswith("full")]
    faults = [[*KILLS][number % len(KILLS)] for number in range(given.tunes)] + given.others * others
    failures, hits = 0, Counter()
    if faults:
        began = time.monotonic()
        undisturbed = play_tune(f"{given.seed}-none", "", 0.0)
        usual = time.monotonic() - began  # the second run prints the result of the first
        with ThreadPoolExecutor(given.parallel) as pool:
            seeds = [f"{given.seed}-{number}" for number in range(len(faults))]
            done = [undisturbed, *pool.map(play_tune, seeds, faults, [draw.uniform(0.2, usual) for _ in faults])]
        failures, hits = sum(bool(tune.problems) for tune in done), Counter(tune.fault for tune in done if tune.is_hit)
        print(f"{len(done)} tunes, each resumed; hit: {dict(hits)}; {failures} failures", flush=True)
    if given.trials:
        killed, problems = kill_trials(given.trials, given.seed)
        print(*problems, f"{sum(killed.values())} trials killed: {dict(killed)}; {len(problems)} failures", sep="\n")
        failures += len(problems)
    if left := {*Path("/dev/shm").iterdir()} - shared:
        failures += 1
        print(f"2: left in /dev/shm: {', '.join(map(str, left))}")
    print(
        "checked: both runs end; no process and no file left, in TMPDIR and /dev/shm; no trial lost or changed; outcomes, "
        f"messages and exit statuses; {failures} failures"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
