"""Damage the database of a tune at random and tune again: nothing ends in a traceback of ours.

    python tests/faults/damaged_storage.py [--count 1000] [--seed 0]

The tunes are those of made-up trials. What ends otherwise is printed with its seed.
"""

import argparse
import contextlib
import json
import random
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
from tests.faults.damaged import VALUES, damaged  # noqa: E402  # as above

CELLS = (
    ("study_user_attributes", "value_json"),
    ("study_system_attributes", "value_json"),
    ("trial_user_attributes", "value_json"),
    ("trial_system_attributes", "value_json"),
    ("trial_params", "distribution_json"),
    ("trial_params", "param_value"),
    ("trial_params", "param_name"),
    ("trial_values", "value"),
    ("trials", "state"),
    ("trials", "datetime_start"),
    ("studies", "study_name"),
)

PLAIN = [value for value in VALUES if isinstance(value, str | int | float) and value not in (10**400, "\ud800")]


def damage(file, seed):
    """Damage one to three cells of a database; returns their places."""
    draw, places = random.Random(seed), []
    connection = sqlite3.connect(file)
    with connection:
        for _ in range(draw.choice((1, 1, 2, 3))):
            table, column = draw.choice(CELLS)
            row, value = draw.choice(connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall())
            if column.endswith("json") and draw.random() < 0.7:
                with contextlib.suppress(ValueError, RecursionError):  # damaged before
                    value = damaged([json.loads(value)], draw.randrange(2**32))[1:-1]
            else:
                value = draw.choice(PLAIN)
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (value, row))
            places.append(f"{table}.{column} = {str(value)[:80]}")
    connection.close()
    return places


def tune_again(folder, storage):
    """Tune once more; returns what is wrong with how it ended, None if nothing is."""
    try:
        collect(tune, make_request(folder, storage=storage, max_trials=12), FakeLauncher())
    except AutofitError as error:
        return None if str(error) else "an error without a text"
    except Exception:
        return traceback.format_exc(limit=-4)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sound, file = folder / "sound.db", folder / "damaged.db"
        collect(tune, make_request(folder, storage=str(sound)), FakeLauncher())
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            shutil.copy(sound, file)
            places = damage(file, seed)
            if problem := tune_again(folder, str(file)):
                failures += 1
                print(f"seed {seed}, {places}: {problem}", flush=True)
    print(f"{arguments.count} damaged databases, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
