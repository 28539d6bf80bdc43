"""Fresh interpreters, quickly: a process that has imported modules and run nothing forks one for each code that it gets.

python -m tests.workload.fresh MODULE...    a line of input is {"code": …, "environment": …}, answered by a line of output
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import traceback


class Fresh:
    """Runs code in new processes, in which the modules are loaded, under environment variables; to be closed."""

    def __init__(self, *modules, **variables):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **variables}
        command = [sys.executable, "-m", "tests.workload.fresh", *modules]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def run(self, code, **environment):
        """Run code; returns what it wrote if it failed, "" otherwise."""
        self._process.stdin.write(json.dumps({"code": code, "environment": environment}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return json.loads(answer) if answer else self._process.stderr.read()

    def close(self):
        """End the process."""
        self._process.communicate()


def main():
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            asked = json.loads(line)
            os.environ.update(asked["environment"])
            told, status = io.StringIO(), ""
            try:
                with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                    exec(compile(asked["code"], "<snippet>", "exec"), {"__name__": "__main__"})  # its purpose
            except BaseException:
                status = told.getvalue() + traceback.format_exc()
            os.write(writing, json.dumps(status).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer or json.dumps("the process died"), flush=True)


if __name__ == "__main__":
    main()
