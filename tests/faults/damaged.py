"""Damage a result or a sweep at random, and show it: every command ends with 0 or 2, without a traceback of ours.

    python tests/faults/damaged.py FILE [--count 5000] [--seed 0]

FILE is a `result.json` or a `sweep.json`. Each damaged file goes through `show`, `kwargs` and `report`, in one process
with a memory limit. What ends otherwise is printed with its seed.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import resource
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
VALUES = (
    None, True, False, 0, -1, 1, 10**18, -(10**18), 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"),
    "", "x", "\x1b[31mred", "\x00", "\ud800", "-5", "nan", [], {}, [[]], {"": None}, [None] * 3, "a" * 100_000,
)  # fmt: skip  # one item a line would be longer, not clearer


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default="show,kwargs,report")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))
    document, failures = json.loads(arguments.file.read_text()), 0
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "damaged.json", Path(folder) / "page.html"
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            file.write_text(damaged(document, seed), errors="surrogatepass")
            for command in arguments.commands.split(","):
                call = [command, str(file), *(["--output", str(page)] if command == "report" else [])]
                with contextlib.redirect_stderr(io.StringIO()):
                    problem = problem_of(call)
                if problem is not None:
                    failures += 1
                    print(f"seed {seed}, {command}: {problem}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{arguments.count} damaged files, {failures} failures, peak {peak} MiB")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
