"""Checks of the platform, the installed libraries, Keras's backend and TensorFlow's allocator."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping

from packaging.requirements import Requirement

from autofit import backends
from autofit.backends.protocol import backend_name
from autofit.backends.tensorflow.gpu import allocator_problem
from autofit.cli.findings import Finding, ok, problem, warning
from autofit.records.distribution import DISTRIBUTION, install_command

_SHOWN = ("tensorflow", "jax", "torch", "keras", "tf_keras", "numpy", "optuna", "protobuf")
_REQUIRED = ("keras", "tensorflow")
"""Libraries whose versions users choose; `pip check` covers the others."""
_IMPORTED = {"tensorflow": "tensorflow", "keras": "keras", "autofit": DISTRIBUTION}
"""Packages, each with the distribution that should install it; other distributions may overwrite its files."""

VersionOf = Callable[[str], str | None]
"""Returns the version of a distribution; None if it is not installed."""


def platform(system: str, release: str, processor: str, python: str) -> Finding:
    """Check the platform: trials run as forks on Linux, as new interpreters on macOS, and not at all on Windows."""
    name = f"{system} {release}, {processor}, Python {python}"
    if system == "Windows":
        return problem(
            "platform", f"{name}: not supported", f"Run autofit in WSL 2: wsl --install, then {install_command()}."
        )
    if system == "Linux":
        return ok("platform", name)
    return ok("platform", f"{name}: each trial starts a new interpreter and imports TensorFlow again")


def libraries(
    version_of: VersionOf, requirements: Iterable[str], providers: Mapping[str, Iterable[str]]
) -> Iterator[Finding]:
    """Check the versions of Keras and TensorFlow, and find packages that several distributions install.

    `requirements` are those of autofit; `providers` lists the distributions that install each package.
    """
    versions = {name: version_of(name) for name in _SHOWN}
    yield ok("libraries", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none")
    for requirement in map(Requirement, requirements):
        name, specifier = requirement.name, requirement.specifier
        version = version_of(name)
        if version is None and name == "tensorflow":  # not needed on JAX and torch; `keras_backend` reports it
            continue
        if name in _REQUIRED and not (version and specifier.contains(version, prereleases=True)):
            detail = f"autofit requires {specifier}; {version or 'none'} is installed"
            yield problem(name, detail, f"Run pip install '{name}{specifier}'.")
    for package, distribution in _IMPORTED.items():
        names = {*providers.get(package, ())} | {name for name in (package, distribution) if version_of(name) is not None}
        if len(names) > 1:
            yield warning(
                package,
                f"installed by {' and by '.join(sorted(names))}, which overwrite each other's files",
                f"Run pip uninstall -y {' '.join(sorted(names))}, then pip install {distribution}.",
            )


def keras_backend(environment: Mapping[str, str], version_of: VersionOf) -> Finding:
    """Check that Keras's backend is installed and supported by autofit; KERAS_BACKEND overrides keras.json."""
    backend = backend_name(environment)
    source = "KERAS_BACKEND" if environment.get("KERAS_BACKEND") else "keras.json or Keras's default"
    if backend not in backends.NAMES:
        detail = f"{backend}, set by {source}; autofit supports {', '.join(backends.NAMES)}"
        return problem("keras backend", detail, "Run export KERAS_BACKEND=tensorflow.")
    version = version_of(backend)
    if version is None:
        detail = f"{backend}, set by {source}, is not installed"
        remedy = backends.remedy_for_missing(backend)
        return problem("keras backend", detail, f"{remedy[0].upper()}{remedy[1:]}.")
    return ok("keras backend", f"{backend} {version}")


def allocator(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the environment does not select an allocator of TensorFlow that ignores the limit of a trial."""
    detail = allocator_problem(environment)
    if detail is not None:
        yield warning("environment", detail, "Run unset TF_GPU_ALLOCATOR before tuning.")


def requirements() -> list[str]:
    """Return the requirements of autofit; empty if it runs from a folder without being installed."""
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
