"""Run tunes and sweeps under a random schedule of faults, and check after each run that nothing is lost, left or wrong.

    python tests/faults/chaos.py [--count 300] [--seed 0] [--parallel 2] [--faults trial-kill,…]

A run tunes a small workload by the command line while one or two faults hit it at random times; then the same command
runs once more, undisturbed. The laws, checked after each run:

1. it ends, within two minutes;
2. two seconds later no process of it is left, nor any file in the folder for temporary files; after all runs, nothing in
   /dev/shm;
3. no trial that was printed or stored is lost;
4. every stored outcome is one that the fault explains;
5. it ends with one message, and no traceback of autofit's;
6. the same command finishes the tune, if a config has run (a first trial may take all of its few seconds).

A run is a line: its seed, storage, command, faults, exit statuses, stored outcomes, and what is wrong. It needs Linux; full
disks and a small /dev/shm need root: without, these faults are left out.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autofit.records.states import Outcome  # noqa: E402  # the repository is not installed everywhere

AUTOFIT = str(Path(sys.executable).parent / "autofit")
MIB = 2**20
RUN_SECONDS, LEFT_SECONDS = 120, 2.0
USUAL_SECONDS = 15.0  # of a run: the faults hit within them
MARK = "AUTOFIT_CHAOS_RUN"

WORKLOAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from tests.workloads import PIXELS, Cases, build_model

def build(width=8):
    return build_model(width)

def arrays():
    return np.ones((4000, PIXELS, PIXELS, 3), "float32"), np.ones((4000, 1), "float32")
"""
DATA = {
    "threads": ("Cases", "workers: [2], max_queue_size: [4], use_multiprocessing: [false]"),
    "processes": ("Cases", "workers: [2], max_queue_size: [4], use_multiprocessing: [true]"),
    "arrays": ("arrays", ""),
}
OK, CRASHED, TIMEOUT = {Outcome.OK}, {Outcome.OK, Outcome.CRASHED}, {Outcome.OK, Outcome.TIMEOUT}
ANY_FAILURE = {*CRASHED, *TIMEOUT, Outcome.HOST_OOM, Outcome.ERROR}


class Run:
    """One run: its folder, its command, its processes."""

    def __init__(self, seed, faults):
        self.draw, self.seed = random.Random(seed), seed
        self.storage_kind = self.draw.choice(("sqlite", "journal"))
        possible = [name for name in faults if not name.startswith("sqlite") or self.storage_kind == "sqlite"]
        self.faults = self.draw.sample(possible, min(len(possible), self.draw.choice((1, 1, 2))))
        self.command = self.draw.choice(("tune", "tune", "tune", "sweep"))
        self.kind = self.draw.choice(("threads", "processes", "processes", "arrays"))
        if any("worker" in name for name in self.faults):
            self.kind = "processes"
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.tmp, self.stored = self.folder / "tmp", self.folder / "stored"
        self.tmp.mkdir()
        self.stored.mkdir()
        self.problems, self.hit, self.mounts = [], [], []
        self.allowed = set(OK)
        self.statuses, self.outcomes = [], Counter()
        self.process = None
        self.output = ""

    @property
    def storage(self):
        return str(self.stored / "t.db") if self.storage_kind == "sqlite" else f"journal:{self.stored / 't.log'}"

    def prepare(self):
        data, space = DATA[self.kind]
        (self.folder / "jobs.py").write_text(WORKLOAD)
        lines = ["build_model: jobs.py:build", f"data: jobs.py:{data}", "max_trials: 2", "max_seconds: 18"]
        lines += ["options: {max_trial_seconds: 12}", f"storage: {self.storage}"]
        lines += [f"space: {{batch_size: [8, 12, 20]{', ' if space else ''}{space}}}"]
        if data == "Cases":
            lines.append("data_kwargs: {seconds: 0.01, length: 60}")
        if self.command == "sweep":
            lines.append("matrix: {model_kwargs.width: [4, 8]}")
        (self.folder / "job.yaml").write_text("\n".join(lines) + "\n")

    def mounted(self, folder, mebibytes):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder], check=True)
        self.mounts.append(folder)

    def start(self):
        command = [AUTOFIT, self.command, "job.yaml"]
        if "full-shm" in self.faults:
            inner = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", inner, "sh", *command]
        environment = {**os.environ, "TMPDIR": str(self.tmp), MARK: f"{os.getpid()}-{self.seed}"}
        for name in self.faults:
            if name.startswith("full-tmp"):
                self.mounted(self.tmp, 160)
            elif name == "full-storage":
                self.mounted(self.stored, 8)
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def below(self):
        """The processes of the run by role, as far as they are there now."""
        roles = {"driver": [self.process.pid], "server": [], "trial": [], "worker": []}
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(self.process.pid)
            for child in driver.children():
                with contextlib.suppress(psutil.Error):
                    if "autofit.trial.server" in " ".join(child.cmdline()):
                        roles["server"].append(child.pid)
                        for trial in child.children():
                            roles["trial"].append(trial.pid)
                            roles["worker"] += [one.pid for one in trial.children(recursive=True)]
        return roles

    def left(self):
        """All processes with the mark of this run, wherever they hang in the tree."""
        mark, found = f"{MARK}={os.getpid()}-{self.seed}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                        if state != "Z":
                            found.append(int(entry.name))
        return found

    def run(self):
        self.prepare()
        self.start()
        times = sorted(self.draw.uniform(0.2, USUAL_SECONDS) for _ in self.faults)
        started = time.monotonic()
        for at, name in zip(times, self.faults, strict=True):
            while self.process.poll() is None and time.monotonic() - started < at:
                time.sleep(0.02)
            self.inject(name)
        self.wait("1: it has not ended")
        first = self.check()
        self.faults = []
        self.start()
        self.wait("6: the same command did not end")
        self.check_again(first)

    def wait(self, problem):
        try:
            self.process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{problem}: {self.below()}")
            self.process.kill()
            self.process.wait()

    def inject(self, name):
        role, _, what = name.partition("-")
        if self.process.poll() is not None:
            return
        if role in ("driver", "server", "trial", "worker"):
            while not (pids := self.below()[role]) and self.process.poll() is None:
                time.sleep(0.02)
            if pids:
                self.send(self.draw.choice(pids), role, what)
                self.hit.append(name)
            return
        if name not in ("both-kill", "sqlite-locked"):
            self.allowed |= ANY_FAILURE
        {
            "both-kill": lambda: [kill(pid) for pid in (*self.below()["server"], self.process.pid)],
            "full-tmp": lambda: self.fill(self.tmp),
            "full-storage": lambda: self.fill(self.stored),
            "full-shm": lambda: self.fill(Path(f"/proc/{self.process.pid}/root/dev/shm")),
            "tmp-removed": lambda: [shutil.rmtree(one, ignore_errors=True) for one in self.tmp.glob("autofit-tune-*")],
            "sqlite-locked": lambda: self.lock(self.draw.uniform(1, 8)),
        }[name]()
        self.hit.append(name)

    def send(self, pid, role, what):
        if role == "server" or (role in ("trial", "worker") and what != "stop"):
            self.allowed |= CRASHED
        if what == "stop" and role != "driver":
            self.allowed |= TIMEOUT
        numbers = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "int": signal.SIGINT}
        kill(pid, numbers.get(what, signal.SIGSTOP))
        if what == "pause":
            seconds = self.draw.uniform(0.5, 4)
            self.allowed |= TIMEOUT
            threading.Timer(seconds, kill, (pid, signal.SIGCONT)).start()

    def fill(self, folder):
        for size in (MIB, 4096):
            with contextlib.suppress(OSError), open(folder / f"filler{size}", "wb") as file:
                while True:
                    file.write(b"\1" * size)
                    file.flush()

    def lock(self, seconds):
        import sqlite3

        file = self.stored / "t.db"
        if not file.exists():
            return
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file, timeout=1)) as held:
            held.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            held.rollback()

    def trials(self):
        """The stored trials: (study, number) by outcome."""
        from autofit.storage import connection

        file = connection.file_of(self.storage)
        if file is not None and not file.exists():
            return {}
        found = {}
        with connection.opened(self.storage) as backend:
            for study in backend.get_all_studies():
                for trial in backend.get_all_trials(study._study_id, deepcopy=False):
                    if "trial" in trial.user_attrs:
                        found[study.study_name, trial.number] = Outcome(trial.user_attrs["trial"]["measurement"]["outcome"])
        return found

    def check(self):
        ended = time.monotonic()
        while (left := self.left()) and time.monotonic() - ended < LEFT_SECONDS:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process = psutil.Process(pid)
                self.problems.append(f"2: process {pid} is left ({process.status()}): {' '.join(process.cmdline())[:200]}")
                os.kill(pid, signal.SIGKILL)
        self.check_files()
        self.output = (self.folder / "output").read_text(errors="replace")
        for filler in [file for folder in self.mounts for file in folder.glob("filler*")]:
            filler.unlink()
        stored = self.trials()
        printed = len(re.findall(r"^batch .*: (?:ok|device_oom|host_oom|crashed|timeout), ", self.output, re.MULTILINE))
        if printed > len(stored) and "the trials cannot be stored: " not in self.output:
            self.problems.append(f"3: {printed} trials were printed, {len(stored)} are stored")
        if wrong := set(stored.values()) - self.allowed:
            self.problems.append(f"4: stored {', '.join(wrong)}")
        status = self.process.returncode
        by_signal = {"driver-kill": 9, "both-kill": 9, "driver-term": 15, "driver-hup": 1, "driver-int": 2}
        numbers = [number for name, number in by_signal.items() if name in self.hit]
        others = {0} if self.hit and set(self.hit) <= set(by_signal) else {0, 1, 2}  # the last for a storage that fails
        if status not in {*others, *(128 + number for number in numbers), *(-number for number in numbers)}:
            self.problems.append(f"5: exit status {status}")
        self.check_messages()
        self.statuses.append(status)
        return stored

    def check_files(self):
        ended = time.monotonic()
        while (files := self.files()) and time.monotonic() - ended < LEFT_SECONDS:
            time.sleep(0.05)
        if files:
            self.problems.append(f"2: files are left: {files[:5]}")

    def files(self):
        return [
            str(path.relative_to(self.tmp))
            for path in self.tmp.iterdir()
            if not path.name.startswith(("filler", "autofit-cpu"))
        ]

    def check_messages(self):
        if re.search(r'File "[^"]*/autofit/(?!tests)', self.output):
            self.problems.append("5: a traceback of autofit's")
        messages = re.findall(r"^(?:autofit: |Interrupted|Traceback)", self.output, re.MULTILINE)
        if len(messages) > 1 and messages != ["autofit: ", "Traceback"]:
            self.problems.append(f"5: {len(messages)} messages")

    def check_again(self, first):
        stored = self.trials()
        wrong = {stored[one] for one in set(stored) - set(first)} - OK
        if wrong:
            self.problems.append(f"4: stored {', '.join(wrong)}, undisturbed")
        lost = set(first) - set(stored)
        if lost:
            self.problems.append(f"3: {len(lost)} trials of the first run are lost")
        status = self.process.returncode
        has_result = any(outcome is Outcome.OK for outcome in stored.values())
        if status != 0 and has_result:
            self.problems.append(f"6: the same command ended with {status}")
        self.statuses.append(status)
        before = len(self.output)
        self.output = (self.folder / "output").read_text(errors="replace")[before:]
        self.check_messages()
        self.check_files()
        self.outcomes = Counter(stored.values())

    def close(self):
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for folder in self.mounts:
            subprocess.run(["umount", "-l", folder], check=False)
        if not self.problems:
            shutil.rmtree(self.folder, ignore_errors=True)


def kill(pid, number=signal.SIGKILL):
    """Send a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def available():
    """The faults that can be made here."""
    faults = [f"{role}-{what}" for role in ("server", "trial", "worker") for what in ("kill", "stop", "term", "pause")]
    faults += ["driver-kill", "driver-term", "driver-hup", "driver-int", "driver-pause", "both-kill", "tmp-removed"]
    can_mount = os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    return [*faults, "sqlite-locked", *(("full-tmp", "full-storage", "full-shm") if can_mount else ())]


def play(seed, faults):
    """One run; returns its line, which has its problems if it did not keep all laws."""
    run = Run(seed, faults)
    began = time.monotonic()
    try:
        run.run()
    except Exception as error:  # a law that could not be checked is not kept
        run.problems.append(f"0: {type(error).__name__}: {error}")
    finally:
        run.close()
    line = {
        "seed": seed,
        "storage": run.storage_kind,
        "command": f"{run.command} {run.kind}",
        "faults": run.hit,
        "status": run.statuses,
        "stored": {str(outcome): count for outcome, count in run.outcomes.items()},
        "seconds": round(time.monotonic() - began),
    }
    return line | ({"problems": run.problems, "folder": str(run.folder)} if run.problems else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--faults", default=",".join(available()), help="default: %(default)s")
    arguments = parser.parse_args()
    # a job in the background ignores it, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before, failures, hits = {*Path("/dev/shm").iterdir()}, 0, Counter()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
        for line in pool.map(lambda seed: play(seed, arguments.faults.split(",")), seeds):
            print(json.dumps(line), flush=True)
            hits.update(line["faults"])
            failures += "problems" in line
    if extra := {*Path("/dev/shm").iterdir()} - before:
        failures += 1
        print(f"2: left: {', '.join(sorted(map(str, extra)))}")
    print(f"{len(seeds)} runs, {sum(hits.values())} faults hit ({dict(sorted(hits.items()))}), {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
