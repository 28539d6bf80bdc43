"""What `train_step` gets for each form of data: from plain `fit`, and in every phase of a trial; all in one process.

python -m tests.trial.forms FOLDER        prints a line of JSON for each form
"""

import json
import os
import sys
from pathlib import Path

from autofit.records.machine import ON_CPU
from autofit.records.states import Role
from autofit.records.trial import FitConfig, Limits, TrialSpec
from autofit.trial.wire import MESSAGES, TASKS, Task
from autofit.trial.worker import main, measure
from autofit.workload.workload import Workload
from tests import programs

SECONDS = 0.05  # of each timing: the structures of the batches are looked at, not the rates
LIMITS = Limits(None, 8 * 2**30)
OPTIONS = {
    "validation_split": (programs.list_of_inputs, 0.25),
    "class_weight": (programs.with_labels, programs.CLASS_WEIGHT),
}


def written(path):
    """The structures that a `train_step` wrote down, once each; the file is removed."""
    structures = sorted(set(path.read_text().splitlines()))
    path.unlink()
    return structures


def played(folder, workload, role):
    """Do the task of a trial in this process, as the trial's own would; returns what it sent."""
    spec = TrialSpec(role, FitConfig(programs.BATCH), LIMITS, 60.0, SECONDS, batch_sizes=(4,))
    workload.save(folder)
    (folder / "task.json").write_bytes(TASKS.dump_json(Task(spec, ON_CPU)))
    pipe = os.open(folder / "messages", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    main.play(folder, "task.json", pipe)
    os.close(pipe)
    return [MESSAGES.validate_json(line) for line in (folder / "messages").read_bytes().splitlines()]


def structures(folder, make, **options):
    """The structures of one form by who handed them over, the failures, and the described number of samples."""
    path = folder / "structures"
    validation = {} if "validation_split" in options else {"validation": make}
    workload = Workload(programs.build_witness, make, model_kwargs={"path": str(path)}, fit_kwargs=options, **validation)
    found, failures, samples = {}, [], None
    for role in Role:
        messages = played(folder, workload, role)
        failures += [message.failure.reason for message in messages if message.failure is not None]
        samples = next((m.description.sample_count for m in messages if m.description is not None), samples)
        found[role.value] = written(path) if path.exists() else []
    programs.plain_fit(make, path, **options)
    return {"plain": written(path), **found, "failures": failures, "sample_count": samples}


if __name__ == "__main__":
    main.preload()
    measure._COMPUTE_SECONDS = measure._INPUT_SECONDS = SECONDS
    cases = {make.__name__: (make, {}) for make in (*programs.ARRAYS, *programs.FACTORIES)}
    cases |= {name: (make, {name: value}) for name, (make, value) in OPTIONS.items()}
    for name, (make, options) in cases.items():
        print(json.dumps([name, structures(Path(sys.argv[1]), make, **options)]), flush=True)
