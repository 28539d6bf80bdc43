"""The stages of a visit.

`stages.py STAGE SECONDS FILE` runs one, and writes what it finds to FILE, as lines of JSON.
"""

import contextlib
import importlib
import os
import sys
import traceback

import fits
import psutil
import pynvml
from report import gpu_used_mib, write

if __name__ == "__main__":
    stage = sys.argv[1]
    status = 0
    try:
        gpu_used_mib()  # an error of NVML's where there is no GPU
        # plain fits do without autofit
        module = fits if hasattr(fits, stage) else importlib.import_module("trials")
        getattr(module, stage)(float(sys.argv[2]))
    except (SystemExit, pynvml.NVMLError) as reason:
        write(reason=str(reason))  # why the stage cannot run here
    except BaseException:
        traceback.print_exc()
        status = 1
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(status)  # data that was not read to its end has threads that wait for ever
