"""Code in fresh interpreters."""

import contextlib
import io
import multiprocessing
import os
import traceback
from concurrent.futures import ProcessPoolExecutor


def run(code, method="forkserver", **environment):
    """Run code in a process that has run nothing; returns what it wrote if it failed, "" otherwise.

    A process has loaded Keras, which takes seconds, unless it is started by the method `spawn`.
    """
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["keras"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(
            execute, code, {"CUDA_VISIBLE_DEVICES": "-1", **environment}
        ).result()


def execute(code, environment):
    os.environ.update(environment)
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            exec(
                compile(code, "<snippet>", "exec"), {"__name__": "__main__"}
            )  # its purpose
    except BaseException:
        return told.getvalue() + traceback.format_exc()
    return ""
