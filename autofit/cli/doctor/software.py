"""Checks of Python, the platform, installed libraries, and environment variables that change how Keras works."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from autofit import backends
from autofit.backends.keras_config import backend_name
from autofit.backends.tensorflow.gpu import allocator_problem
from autofit.cli.doctor.findings import Finding, ok, problem, warning
from autofit.records.distribution import DISTRIBUTION, install_command

_SHOWN = ("tensorflow", "jax", "torch", "keras", "tf_keras", "numpy", "optuna", "protobuf")
_REQUIRING = (DISTRIBUTION, "tensorflow", "keras", "optuna")
"""The requirements of these are checked; tf_keras has its own check."""
_IMPORTED = {"tensorflow": "tensorflow", "keras": "keras", "autofit": DISTRIBUTION}
"""Packages and the distributions that install them, which another distribution may overwrite."""

_REASONS = {
    "keras": "before 3.7 an epoch with more than one worker hangs at its end",
    "tensorflow": "before 2.18 it is built for NumPy 1",
}


def platform(system: str, release: str, processor: str) -> Finding:
    """Check the platform: trials run as forks on Linux, as new interpreters on macOS, not on Windows."""
    name = f"{system} {release}, {processor}"
    if system == "Windows":
        return problem(
            "platform", f"{name}: not supported", f"Run autofit in WSL 2: wsl --install, then {install_command()}."
        )
    if system == "Linux":
        return ok("platform", f"{name} on WSL" if "microsoft" in release.lower() else name)
    return ok("platform", f"{name}: each trial starts a new interpreter and imports TensorFlow again")


def python(version: str, supported: str) -> Finding:
    """Check Python's version against a specifier of the supported versions."""
    if SpecifierSet(supported).contains(version, prereleases=True):
        return ok("python", version)
    return problem(
        "python",
        f"autofit does not support {version} (supported: {supported})",
        "Create an environment with a supported Python.",
    )


def libraries(
    version_of: Callable[[str], str | None],
    requirements_of: Callable[[str], Iterable[str]],
    providers: Mapping[str, list[str]],
) -> Iterator[Finding]:
    """Check installed versions, unmet requirements, and packages that several distributions install.

    Args:
        version_of: returns the version of a distribution, None if it is not installed.
        requirements_of: returns the requirements of a distribution.
        providers: distributions by the package that they install.
    """
    versions = {name: version_of(name) for name in _SHOWN}
    yield ok("libraries", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none")
    reported: set[str] = set()
    for requiring in _REQUIRING:
        for requirement in map(Requirement, requirements_of(requiring)):
            name = canonicalize_name(requirement.name)
            if name in reported or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
                continue
            unmet = _unmet(requirement, version_of(requirement.name), requiring)
            if unmet is not None:
                reported.add(name)
                yield unmet
    for package, distribution in _IMPORTED.items():
        names = {*providers.get(package, ())} | {name for name in (package, distribution) if version_of(name) is not None}
        if len(names) > 1:
            yield warning(
                package,
                f"installed by {' and by '.join(sorted(names))}, which overwrite each other's files",
                f"Run pip uninstall -y {' '.join(sorted(names))}, then pip install {distribution}.",
            )


def _unmet(requirement: Requirement, version: str | None, requiring: str) -> Finding | None:
    name, specifier = requirement.name, str(requirement.specifier)
    remedy = f"Run pip install '{name}{specifier}'."
    if version is None:
        return problem(name, f"not installed; {requiring} requires it", remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return None
    detail = f"{requiring} does not support {version} (supported: {specifier})"
    if requiring != DISTRIBUTION:
        return warning(name, detail, remedy)
    too_old = all(Version(version) < Version(s.version) for s in requirement.specifier if ">" in s.operator)
    return problem(name, f"{detail}; {_REASONS[name]}" if too_old and name in _REASONS else detail, remedy)


def legacy_keras(environment: Mapping[str, str], tensorflow: str | None, tf_keras: str | None) -> Finding | None:
    """Check that tf_keras (Keras 2) is installed if it is enabled, and matches TensorFlow; None if it is not used."""
    enabled = environment.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if tensorflow is None or (tf_keras is None and not enabled):
        return None
    release = _minor(tensorflow)
    remedy = f"Run pip install 'tf_keras~={release}.0'."
    if tf_keras is None:
        return problem("tf_keras", "TF_USE_LEGACY_KERAS is set, but tf_keras is not installed", remedy)
    if _minor(tf_keras) != release:
        detail = f"{tf_keras} is for TensorFlow {_minor(tf_keras)}, but {tensorflow} is installed"
        return (problem if enabled else warning)("tf_keras", detail, remedy)
    return ok("tf_keras", "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2") if enabled else None


def _minor(version: str) -> str:
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"


def keras_backend(environment: Mapping[str, str], version_of: Callable[[str], str | None]) -> Finding:
    """Check that autofit supports the backend that Keras uses, and that it is installed.

    Args:
        environment: environment variables; KERAS_BACKEND overrides Keras's file.
        version_of: returns the version of a distribution, None if it is not installed.
    """
    backend = backend_name(environment)
    source = "KERAS_BACKEND" if environment.get("KERAS_BACKEND") else "keras.json"
    if backend not in backends.NAMES:
        detail = f"{backend}, set by {source}; autofit supports {', '.join(backends.NAMES)}"
        return problem("keras backend", detail, "Run export KERAS_BACKEND=tensorflow.")
    version = version_of(backend)
    if version is None:
        detail = f"{backend}, set by {source}, is not installed"
        return problem("keras backend", detail, f"Run {install_command(backend)}, or export KERAS_BACKEND=tensorflow.")
    return ok("keras backend", f"{backend} {version}")


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the environment variables that configure TensorFlow."""
    growth = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth not in (None, "true", "false"):
        yield warning(
            "environment",
            f"TF_FORCE_GPU_ALLOW_GROWTH={growth} is neither true nor false: TensorFlow ignores it",
            "Set it to true or false, or run unset TF_FORCE_GPU_ALLOW_GROWTH.",
        )
    allocator = allocator_problem(environment)
    if allocator is not None:
        yield warning("environment", allocator, "Run unset TF_GPU_ALLOCATOR before tuning.")
    xla = environment.get("XLA_FLAGS", "")
    if "xla_dump" in xla:
        yield warning(
            "environment",
            f"XLA_FLAGS={xla}: XLA writes files at each compilation, which slows every trial",
            "Run unset XLA_FLAGS before tuning.",
        )
    elif xla:
        yield ok("environment", f"XLA_FLAGS={xla}: applies to every trial; train with the same flags")
    onednn = environment.get("TF_ENABLE_ONEDNN_OPTS")
    if onednn is not None:
        yield ok(
            "environment",
            f"TF_ENABLE_ONEDNN_OPTS={onednn}: changes rate and memory on a CPU; train with the same value. "
            "Results with another value are stored separately",
        )


def version_of(distribution: str) -> str | None:
    """The installed version; None if the distribution is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements_of(distribution: str) -> list[str]:
    """The requirements of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def supported_python() -> str:
    """The Python versions that autofit supports, as a specifier; empty if autofit is not installed."""
    try:
        return importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        return ""
