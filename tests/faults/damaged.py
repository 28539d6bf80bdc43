"""Damage results and databases at random, and read them: each ends with a result or a message, without a traceback of ours.

    python tests/faults/damaged.py FILE [--count 1000] [--seed 0]     a result.json or sweep.json
    python tests/faults/damaged.py --storage [--count 1000]           the database of a tune of made-up trials

Each damaged file goes through `show` and `kwargs`, each eighth through `report` too, in one process with a memory limit;
each damaged database is tuned again. What ends otherwise is printed with its seed.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autofit.errors import AutofitError  # noqa: E402  # the repository is not installed everywhere
from tests.fakes import FakeLauncher, collect, make_request, tune  # noqa: E402  # as above

GIB = 2**30
VALUES = (
    None, True, False, 0, -1, 1, 10**18, -(10**18), 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"),
    "", "x", "\x1b[31mred", "\x00", "\ud800", "-5", "nan", [], {}, [[]], {"": None}, [None] * 3, "a" * 100_000,
)  # fmt: skip  # one item a line would be longer, not clearer
PLAIN = [value for value in VALUES if isinstance(value, str | int | float) and value not in (10**400, "\ud800")]
CELLS = {
    "study_user_attributes": ("value_json",),
    "study_system_attributes": ("value_json",),
    "trial_user_attributes": ("value_json",),
    "trial_system_attributes": ("value_json",),
    "trial_params": ("distribution_json", "param_value", "param_name"),
    "trial_values": ("value",),
    "trials": ("state", "datetime_start"),
    "studies": ("study_name",),
}


def places(node, path=()):
    """The path of every value."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def damaged(document, seed):
    """The text of the document with one to three places damaged."""
    draw = random.Random(seed)
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        paths = [path for path in places(document) if path]
        if not paths:
            break
        path = draw.choice(paths)
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        kind = draw.random()
        if kind < 0.15:
            del parent[path[-1]]
        elif kind < 0.25 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        else:
            parent[path[-1]] = draw.choice(VALUES)
    text = json.dumps(document)
    if draw.random() < 0.05:
        start = draw.randrange(len(text))
        text = text[:start] + draw.choice(("", "[" * 100_000, "\x00", '"')) + text[start + draw.randrange(50) :]
    return text


def problem_of(arguments):
    """Run a command; returns what is wrong with how it ended, None if nothing is."""
    from typer.testing import CliRunner

    from autofit.cli import app

    ended = CliRunner().invoke(app, arguments)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        return "".join(traceback.format_exception(ended.exception)[-3:])
    if ended.exit_code not in (0, 2):
        return f"exit {ended.exit_code}: {ended.output[-500:]}"
    return "an escape sequence reached the terminal" if "\x1b[31mred" in ended.output else None


def file_problems(file, document, seed):
    """What is wrong with how the commands end on a damaged document, by command."""
    file.write_text(damaged(document, seed), errors="surrogatepass")
    page = ["--output", str(file.with_suffix(".html"))]
    for command in ("show", "kwargs") if seed % 8 else ("show", "kwargs", "report"):
        with contextlib.redirect_stderr(io.StringIO()):
            problem = problem_of([command, str(file), *(page if command == "report" else [])])
        if problem is not None:
            yield f"{command}: {problem}"


def storage_problems(file, sound, seed):
    """What is wrong with how a tune ends on a database with one to three damaged cells, by their places."""
    draw, places = random.Random(seed), []
    shutil.copy(sound, file)
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        for _ in range(draw.choice((1, 1, 2, 3))):
            table, column = draw.choice([(table, column) for table, columns in CELLS.items() for column in columns])
            row, value = draw.choice(connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall())
            if column.endswith("json") and draw.random() < 0.7:
                with contextlib.suppress(ValueError, RecursionError):  # damaged before
                    value = damaged([json.loads(value)], draw.randrange(2**32))[1:-1]
            else:
                value = draw.choice(PLAIN)
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (value, row))
            places.append(f"{table}.{column} = {str(value)[:80]}")
    try:
        collect(tune, make_request(file.parent, storage=str(file), max_trials=12), FakeLauncher())
    except AutofitError as error:
        if not str(error):
            yield f"{places}: an error without a text"
    except Exception:
        yield f"{places}: {traceback.format_exc(limit=-4)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.storage:
            problems, file, sound = storage_problems, folder / "damaged.db", folder / "sound.db"
            collect(tune, make_request(folder, storage=str(sound)), FakeLauncher())
        else:
            problems, file, sound = file_problems, folder / "damaged.json", json.loads(arguments.file.read_text())
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            for problem in problems(file, sound, seed):
                failures += 1
                print(f"seed {seed}, {problem}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{arguments.count} damaged, {failures} failures, peak {peak} MiB")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
