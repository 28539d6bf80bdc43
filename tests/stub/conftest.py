"""The stub of CUDA (cuda.c), built for the tests of this folder, and the environment for it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.records import version_of
from tests.installed import needs

SOURCE = Path(__file__).with_name("cuda.c")
# that TensorFlow and NVML's module for Python open by name; those of CUDA 12, for which
# TensorFlow's wheels are built
LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcupti.so.12",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libnccl.so.2",
    "libnvJitLink.so.12",
    "libnvidia-ml.so.1",
    "libnvrtc.so.12",
)
PREFIXES = (
    "cu",
    "cublas",
    "cublasLt",
    "cuda",
    "cudnn",
    "cufft",
    "cupti",
    "cusolver",
    "cusparse",
    "nccl",
    "nvJitLink",
    "nvml",
    "nvrtc",
)
# XLA tries kernels and measures them, or records them into graphs, unless it is told not to: here
# none runs
XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="


def names_of_cuda():
    """The names of CUDA's functions in TensorFlow's libraries, which look each of them up."""
    package = Path(importlib.util.find_spec("tensorflow").origin).parent
    pattern = rf"_{{0,2}}({'|'.join(PREFIXES)})[A-Z][A-Za-z0-9_]*$"
    # strings end with a zero; one that is the end of another one is stored as that end
    command = [
        "grep",
        "-azohE",
        pattern,
        *map(str, package.glob("libtensorflow_*.so.2")),
    ]
    found = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=True
    )
    return sorted({name.decode() for name in found.stdout.split(b"\0") if name})


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The folder of the stub's libraries."""
    needs("tensorflow")
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("the stub of CUDA is built by gcc, on Linux")
    if version_of("nvidia-cuda-runtime-cu12"):
        pytest.skip("TensorFlow finds CUDA's own libraries before the stub of CUDA")
    folder = tmp_path_factory.mktemp("stub")
    # what cuda.c defines takes the place of what is weak
    weak = [
        f'long {name}(void) __attribute__((weak, alias("nothing")));\n'
        for name in names_of_cuda()
    ]
    others = folder / "others.c"
    others.write_text("static long nothing(void) { return 0; }\n" + "".join(weak))
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            SOURCE,
            others,
            "-o",
            folder / "stub.so",
            "-lpthread",
        ],
        check=True,
    )
    for name in LIBRARIES:
        (folder / name).symlink_to("stub.so")
    return folder


@pytest.fixture(scope="session")
def cuda_compiler():
    """The folder of NVIDIA's compiler, with which XLA compiles; None where it is not installed."""
    if not version_of("nvidia-cuda-nvcc-cu12"):
        return None
    sites = importlib.util.find_spec("nvidia").submodule_search_locations
    return next(
        folder for site in sites if (folder := Path(site) / "cuda_nvcc").is_dir()
    )


@pytest.fixture(scope="session")
def on_cards(libraries, cuda_compiler, tmp_path_factory):
    """Make the environment of programs that see `count` cards of the stub, which no others use."""

    def on_cards(count=1, **card):
        ledger = tmp_path_factory.mktemp("cards") / "ledger"
        paths = {"LD_LIBRARY_PATH": [str(libraries)], "PATH": []}
        flags = XLA_FLAGS
        if cuda_compiler is not None:
            paths["PATH"].append(str(cuda_compiler / "bin"))
            flags += f" --xla_gpu_cuda_data_dir={cuda_compiler}"
        joined = {
            name: os.pathsep.join([*folders, *filter(None, [os.environ.get(name)])])
            for name, folders in paths.items()
        }
        return {
            **joined,
            "CUDA_VISIBLE_DEVICES": None,
            "KERAS_BACKEND": "tensorflow",
            "STUB_LEDGER": str(ledger),
            "STUB_CARDS": str(count),
            "XLA_FLAGS": flags,
            **{f"STUB_{name.upper()}": value for name, value in card.items()},
        }

    return on_cards
