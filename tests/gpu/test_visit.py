"""A rehearsal on the CPU ends each stage with a verdict, and a second call goes on where the first
has ended.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.visit import planned
from tests.installed import needs

VISIT = Path(__file__).with_name("visit.py")


def visit(folder, *arguments):
    """Run a visit; returns its lines, those of its table, and its exit code."""
    done = subprocess.run(
        [sys.executable, VISIT, "--folder", folder, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = done.stdout.splitlines()
    return (
        [json.loads(row) for row in rows if row[0] == "{"],
        [row for row in rows if row[0] != "{"],
        done.returncode,
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_every_stage_of_a_rehearsal_ends_with_a_verdict(backend, tmp_path):
    needs(backend)
    first, *others = planned([backend])
    rehearsal = ("--small", "--slower", "8", "--backends", backend, "--only")
    begun, _, _ = visit(tmp_path, *rehearsal, first)
    resumed, table, status = visit(tmp_path, *rehearsal, ",".join([first, *others]))
    assert [[line["stage"] for line in lines] for lines in (begun, resumed)] == [
        [first],
        others,
    ]
    assert {
        line["stage"]: line["reason"]
        for line in (*begun, *resumed)
        if line["verdict"] not in ("right", "read")
    } == {}
    assert (status, max(map(len, table))) == (0, 80)


def test_a_wrong_figure_is_seen_in_the_table_and_in_the_exit_code(tmp_path):
    line = {
        "stage": "limit-jax",
        "verdict": "wrong",
        "reason": "",
        "seconds": 9.0,
        "details": {},
    }
    line["figures"] = [["peak over the limit", "1.2", "0 to 1", False]]
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    lines, table, status = visit(
        tmp_path, "--only", "limit-jax,kill-jax", "--minutes", "0"
    )
    assert (lines, status) == ([], 1)
    assert (
        table[1]
        == "kill-jax, no time yet, 0 s: Is anything left of a tune that is killed?"
    )
    assert (table[-1].split()[-1], len(table)) == ("NO", 4)
