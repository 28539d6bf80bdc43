"""`tune_script`: find the fastest configuration of a training script as it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.api.result import Result
from autofit.api.session import explain_calls, parse, run
from autofit.api.tune import tune_arguments
from autofit.records.description import Description
from autofit.records.events import Emit
from autofit.records.trial import Measurement
from autofit.report.console.progress import Progress
from autofit.trial.launcher import Launcher
from autofit.tuning.request import TuneRequest


@explain_calls
def tune_script(
    script: str | os.PathLike[str],
    arguments: Sequence[Any] = (),
    *,
    places: Mapping[str, str] = {},
    fit: int = 0,
    writes: bool = False,
    backend: str | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Result:
    """Find the fastest configuration of a training script, and the edit that sets it.

    Each trial runs the script, with one edit, up to its call of `fit`, trains there for a few
    seconds, and ends its process.

    Args:
        script: path of the script, or "-m package.module".
        arguments: arguments of its command line.
        places: where a knob is set, if autofit does not find it: a line, as in
            `{"batch_size": "train.py:12"}`, or an option, as in `{"batch_size": "--bs"}`.
        fit: which call of `fit` is tuned, from 1, of a script with several; those before it do not
            train.
        writes: whether the script may write files before it calls `fit`, as each trial then does.
        backend: backend of Keras; None for the one that the script, `KERAS_BACKEND` or keras.json
            names.
        progress: whether to show progress, or a `Progress` to show it on.
        settings: arguments of `tune` that say what is searched, where, within which limits, and how
            long.

    Returns:
        The result. `result.snippet()` is a diff, which `patch -p0` applies, or the command line
        with its options.

    Raises:
        UsageError: an argument is wrong, or the script cannot be tuned; the message says why, and
            what to do.
        Others: as for `tune`.

    Example:
        >>> space = {"batch_size": [32, 256]}
        >>> result = autofit.tune_script("train.py", space=space, max_seconds=60, progress=False)
        >>> result.config.batch_size in (32, 256)
        True
    """
    of_script: dict[str, Any] = {
        "script": os.fspath(script),
        "arguments": arguments,
        "places": places,
        "fit": fit,
        "writes": writes,
        **({} if backend is None else {"backend": backend}),
    }
    return tune_arguments({**settings, **of_script}, progress)


def describe(arguments: Mapping[str, Any]) -> Description:
    """Run a script once up to its call of `fit`, and return what is known before anything is
    trained.
    """

    def first_trial(
        request: TuneRequest, launcher: Launcher, emit: Emit
    ) -> Description:
        from autofit.tuning.runner import TrialRunner, not_described  # loads SciPy

        runner = TrialRunner(request, launcher, emit)
        described = runner.describe(request.asked_baseline, batch_sizes=(1,))
        if isinstance(described, Measurement):
            raise not_described(described, runner.budget)
        return described

    return run(first_trial, *parse(arguments), False, is_timed=False)
