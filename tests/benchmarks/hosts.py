"""Sweeps over the hosts of a Ray cluster: what the engine costs, what a lost host costs, and whether rates stay true.

    python tests/benchmarks/hosts.py                            print the frozen figures
    python tests/benchmarks/hosts.py --run [--only PART,…]      measure (ten minutes) and freeze them

Method. The cluster is made of processes on this machine: a head that measures nothing and three hosts with one cell at a
time each. Parts:

    engine   12 cells of 5 s (they sleep) on 3 hosts, three times; the ideal is 20 s.
    kills    ten sweeps of 12 cells of about 2 s, in each of which one host is killed at a random time: cells without an
             answer, cells tuned twice to the end, trials run twice (by the storage that the hosts share).
    rates    a config measured on this machine and on a host of the cluster in turn, six pairs; the ratio is the geometric
             mean of the pairs' with its 95 % interval (t). TensorFlow, its default threads.
    scale    10,000 cells answered at once by a made-up executor of 1,000 hosts: seconds of the sweep's own thread, the
             file, the table and the page; and 2,000 cells that do nothing on the three hosts of Ray.
    storage  what tunes of made-up trials take of PostgreSQL, where its server is installed.
"""

import argparse
import io
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import psutil  # noqa: E402  # the tests are found by the line above
from rich.console import Console  # noqa: E402  # the tests are found by the line above

from autofit.api.result import SweepResult  # noqa: E402
from autofit.records.sweep import Cell, SweepRecord  # noqa: E402
from autofit.report.console.tables import sweep_table  # noqa: E402
from autofit.tuning.cells import CellEnded, CellRequest, tune_cells  # noqa: E402
from autofit.tuning.executors.local import LocalExecutor  # noqa: E402
from autofit.tuning.settings import TuneSettings  # noqa: E402
from autofit.workload.workload import Workload  # noqa: E402
from tests.faults.postgres import POSTGRES, Postgres  # noqa: E402
from tests.hosts import sleeping, tunes  # noqa: E402

FROZEN = HERE / "hosts.json"
PARTS = ("engine", "kills", "rates", "scale", "storage")
CELL_SECONDS, CELLS, HOSTS = 5.0, 12, 3


def cells(folder, count, storage=None, **kwargs):
    """Cells of made-up tunes."""
    settings = TuneSettings(device="cpu", storage=storage or f"journal:{folder}/trials.log")
    return [
        CellRequest(
            {"n": n}, Workload(len, len, model_kwargs={"folder": str(folder), "name": f"cell{n}", **kwargs}), settings
        )
        for n in range(count)
    ]


def on_ray(requests, tune):
    """Sweep on the cluster; returns the record and the seconds it took."""
    from autofit.tuning.executors.ray_executor import RayExecutor

    executor = RayExecutor(tune, "ray", None, lambda text: None)
    began = time.perf_counter()
    record = list(tune_cells("s", requests, executor))[-1].record
    return record, time.perf_counter() - began


class Cluster:
    """A head and three hosts, as processes on this machine."""

    def __init__(self):
        from tests.hosts.conftest import Hosts

        self.hosts = Hosts(HOSTS)
        os.environ["RAY_ADDRESS"] = self.hosts.cluster.address

    def __enter__(self):
        return self.hosts

    def __exit__(self, *_):
        self.hosts.close()


def made_up_record():
    """The record of a made-up tune."""
    with tempfile.TemporaryDirectory() as folder:
        request = cells(folder, 1)
        return list(tune_cells("s", request, LocalExecutor(tunes.tune)))[-1].record.cells[0].tune


def engine():
    """Seconds of sweeps whose cells sleep."""
    record, seconds = made_up_record(), []
    with Cluster(), tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            requests = cells(folder, CELLS, seconds=CELL_SECONDS, record=record)
            seconds.append(on_ray(requests, sleeping.sleep)[1])
    return {"seconds": seconds, "ideal": CELL_SECONDS * CELLS / HOSTS}


def kills():
    """What ten sweeps lose with a host each."""
    rows = []
    for number in range(10):
        with Cluster() as hosts, tempfile.TemporaryDirectory() as name:
            folder, draw = pathlib.Path(name), random.Random(number)
            killer = threading.Timer(draw.uniform(1.0, 8.0), hosts.kill, [f"host{draw.randrange(HOSTS)}"])
            killer.start()
            record, seconds = on_ray(cells(folder, CELLS, seconds=0.4), tunes.tune)
            killer.join()
            notes = [line.split() for line in (folder / "notes").read_text().splitlines()]
            tuned = Counter(cell for kind, cell in notes if kind == "tuned")
            trials = [len(cell.tune.searched) for cell in record.cells if cell.tune is not None]
            rows.append(
                {
                    "seconds": seconds,
                    "unanswered": sum(cell.outcome != "ok" for cell in record.cells),
                    "tuned_twice": sum(count > 1 for count in tuned.values()),
                    "moved": sum(bool(cell.note) for cell in record.cells),
                    "trials": sorted(set(trials)),
                }
            )
    return rows


def rates(pairs=6):
    """Rates of a config, measured here and on a host of the cluster."""
    rows = []
    with Cluster():
        for number in range(pairs):
            both = {}
            for executor in ("local", "ray") if number % 2 else ("ray", "local"):
                with tempfile.TemporaryDirectory() as folder:
                    both[executor] = rate_in(executor, folder)
            rows.append([both["ray"], both["local"]])
    return rows


def rate_in(executor, folder):
    """The confirmed rate of the baseline in a sweep of one cell."""
    import autofit
    from tests.benchmarks import backend_rates

    found = autofit.sweep(
        backend_rates.build_model,
        backend_rates.make_data,
        {"max_trials": [1]},
        model_kwargs={"job": "cnn"},
        data_kwargs={"job": "cnn"},
        executor=executor,
        baseline={"batch_size": 64},
        space={"batch_size": [64], "workers": [1], "max_queue_size": [10], "use_multiprocessing": [False]},
        storage=f"sqlite:///{folder}/trials.db",
        progress=False,
    )
    return found.cells[0].tune.samples_per_second


class MadeUp:
    """An executor with a thousand hosts, whose cells end at once."""

    def __init__(self, record):
        self.record, self.pool = record, ThreadPoolExecutor(4)

    def start(self, requests, report):
        return [self.pool.submit(self.answer, index, request, report) for index, request in enumerate(requests)]

    def answer(self, index, request, report):
        host = f"host{index % 1000}"
        report(index, host, "")
        return Cell(request.values, self.record, host=host)

    def close(self):
        self.pool.shutdown()


def scale():
    """Seconds for 10,000 cells, and for 2,000 that do nothing on Ray."""
    found, rows = made_up_record(), {}
    with tempfile.TemporaryDirectory() as folder:
        requests = cells(folder, 10_000)
        began, own = time.perf_counter(), time.thread_time()
        for event in tune_cells("s", requests, MadeUp(found)):
            record = event.record if isinstance(event, CellEnded) else None
        assert isinstance(record, SweepRecord)
        rows["sweep"], rows["sweep_own"] = time.perf_counter() - began, time.thread_time() - own
        result = SweepResult(**vars(record))
        file = pathlib.Path(folder, "sweep.json")
        for name, act in {
            "save": lambda: result.save(file),
            "table": lambda: Console(file=io.StringIO(), width=120).print(sweep_table(record)),
            "page": lambda: result.report(pathlib.Path(folder, "sweep.html")),
        }.items():
            began = time.perf_counter()
            act()
            rows[name] = time.perf_counter() - began
        rows["file_bytes"] = file.stat().st_size
        rows["page_bytes"] = pathlib.Path(folder, "sweep.html").stat().st_size
        with Cluster():
            requests = cells(folder, 2000, seconds=0, record=found)
            rows["ray_2000"] = on_ray(requests, sleeping.sleep)[1]
    return rows


def storage(count=20):
    """What a tune takes of PostgreSQL: seconds of its CPU time, transactions, connections at once."""
    if not POSTGRES.is_dir() or os.geteuid():
        return None
    import psycopg

    server = Postgres()
    try:
        server.create("trials")
        master = psutil.Process(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]))
        address = f"dbname=trials host={server.folder} port={server.port} user=postgres"
        with tempfile.TemporaryDirectory() as folder, psycopg.connect(address, autocommit=True) as watching:
            requests = cells(folder, count + 1, server.url("trials"), seconds=0)
            tune_quietly(requests[0])  # makes the tables
            transactions = "select xact_commit from pg_stat_database where datname='trials'"
            before = cpu_seconds(master), watching.execute(transactions).fetchone()[0]
            for request in requests[1:]:
                tune_quietly(request)
            seconds = (cpu_seconds(master) - before[0]) / count
            done = (watching.execute(transactions).fetchone()[0] - before[1]) / count
            thread = threading.Thread(target=tune_quietly, args=[cells(folder, 1, server.url("trials"), seconds=0.2)[0]])
            thread.start()
            most = 0
            while thread.is_alive():
                query = "select count(*) from pg_stat_activity where datname='trials'"
                most = max(most, watching.execute(query).fetchone()[0] - 1)
    finally:
        server.close()
    return {"cpu_seconds": seconds, "transactions": done, "connections": most}


def tune_quietly(cell):
    """A made-up tune."""
    tunes.tune(cell, lambda text: None, threading.Event())


def cpu_seconds(process):
    """CPU time of a server, with its processes that live and have ended."""
    return sum(process.cpu_times()[:4]) + sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))


def show(figures):
    """Print the figures."""
    from scipy.stats import t as student

    if row := figures.get("engine"):
        ratios = [seconds / row["ideal"] for seconds in row["seconds"]]
        times = ", ".join(f"{seconds:.1f}" for seconds in row["seconds"])
        print(f"engine   {CELLS} cells of {CELL_SECONDS:g} s on {HOSTS} hosts: {times} s; ideal {row['ideal']:.0f} s")
        print(f"         ratio {statistics.median(ratios):.3f} (median; highest {max(ratios):.3f})")
    if rows := figures.get("kills"):
        lost, twice, moved = (sum(row[key] for row in rows) for key in ("unanswered", "tuned_twice", "moved"))
        trials = sorted({count for row in rows for count in row["trials"]})
        print(
            f"kills    {len(rows)} sweeps of {CELLS} cells, a host killed in each: {lost} unanswered, {twice} tuned twice,"
        )
        print(f"         {moved} moved to another host; trials of a cell: {trials}")
    if pairs := figures.get("rates"):
        ratios = [math.log(there / here) for there, here in pairs]
        mean, count = statistics.fmean(ratios), len(ratios)
        half = student.ppf(0.975, count - 1) * statistics.stdev(ratios) / math.sqrt(count)
        low, high = math.exp(mean - half), math.exp(mean + half)
        print(f"rates    on Ray / without: {math.exp(mean):.3f} ({low:.3f} to {high:.3f}), {count} pairs")
    if row := figures.get("scale"):
        file, page = row["file_bytes"] / 2**20, row["page_bytes"] / 2**20
        print(f"scale    10,000 cells: {row['sweep']:.1f} s, {row['sweep_own']:.1f} s of it the sweep's own thread;")
        print(f"         sweep.json {file:.0f} MiB in {row['save']:.1f} s, table in {row['table']:.1f} s,")
        print(f"         page {page:.0f} MiB in {row['page']:.1f} s; 2,000 cells on Ray {row['ray_2000']:.1f} s")
    if row := figures.get("storage"):
        print(f"storage  PostgreSQL, a tune of made-up trials: {row['cpu_seconds']:.2f} s of its CPU time,")
        print(f"         {row['transactions']:.0f} transactions, {row['connections']} connections at once")


def main():
    """Print the frozen figures, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure, and freeze the figures")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure; the others stay as they are")
    arguments = parser.parse_args()
    figures = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    if arguments.run:
        for part in arguments.only.split(","):
            figures[part] = globals()[part]()
            FROZEN.write_text(json.dumps(figures, indent=1) + "\n")
            print(part, "done", file=sys.stderr, flush=True)
    show(figures)


if __name__ == "__main__":
    main()
