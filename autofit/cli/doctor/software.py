"""Python, the platform, the versions of libraries, and the environment variables that change what Keras does."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from autofit.backends.tensorflow.backend import keras_file
from autofit.cli.doctor.findings import Finding, ok, problem, warning

_SHOWN = ("tensorflow", "keras", "tf_keras", "numpy", "optuna", "protobuf")
_ASKED = ("tensorflow", "keras", "optuna")
"""What these require is looked at, too; tf_keras has a finding of its own."""

_REASONS = {
    "keras": "before 3.7 an epoch hangs at its end with more than one worker",  # Keras 3.6, mended in 3.7
    "tensorflow": "before 2.18 it is built for NumPy 1",  # TensorFlow 2.18 is the first that is built for NumPy 2
}


def platform(system: str, release: str, processor: str) -> Finding:
    """Whether trials can run here: on Linux as forks, on macOS as interpreters of their own, not on Windows."""
    named = f"{system} {release}, {processor}"
    if system == "Windows":
        return problem(
            "platform", f"{named}: not supported", "Run autofit in WSL 2: wsl --install, then pip install there."
        )
    if system == "Linux":
        return ok("platform", f"{named} on WSL" if "microsoft" in release.lower() else named)
    return ok("platform", f"{named}: each trial is an interpreter of its own, which imports TensorFlow anew")


def python(version: str, wanted: str) -> Finding:
    """Whether this Python is one that autofit supports; `wanted` is a version specifier."""
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return ok("python", version)
    return problem(
        "python",
        f"{version} is outside what autofit supports ({wanted})",
        "Make an environment with a Python in that range.",
    )


def libraries(
    version_of: Callable[[str], str | None],
    requirements_of: Callable[[str], Iterable[str]],
    providers: Mapping[str, list[str]],
) -> Iterator[Finding]:
    """What is installed, what of it is outside of what is wanted by whom, and what overwrites one another.

    Args:
        version_of: the version of a distribution, None where it is not installed.
        requirements_of: what a distribution requires, as packaging writes it.
        providers: the distributions that install a package of that name.
    """
    found = {name: version_of(name) for name in _SHOWN}
    yield ok("libraries", ", ".join(f"{name} {version}" for name, version in found.items() if version) or "none")
    told: set[str] = set()
    for asking in ("autofit", *_ASKED):
        for requirement in map(Requirement, requirements_of(asking)):
            name = canonicalize_name(requirement.name)
            if name in told or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
                continue
            unmet = _unmet(requirement, version_of(requirement.name), asking)
            if unmet is not None:
                told.add(name)
                yield unmet
    for package in ("tensorflow", "keras"):
        names = sorted(set(providers.get(package, ())))
        if len(names) > 1:
            yield warning(
                package,
                f"installed by {' and by '.join(names)}, whose files overwrite one another",
                f"Run pip uninstall -y {' '.join(names)}, then pip install {package}.",
            )


def _unmet(requirement: Requirement, version: str | None, asking: str) -> Finding | None:
    name, wanted = requirement.name, str(requirement.specifier)
    remedy = f"Run pip install '{name}{wanted}'."
    if version is None:
        return problem(name, f"not installed; {asking} needs it", remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return None
    detail = f"{version} is outside what {asking} supports ({wanted})"
    if asking != "autofit":
        return warning(name, detail, remedy)
    older = name in _REASONS and all(
        Version(version) < Version(s.version) for s in requirement.specifier if ">" in s.operator
    )
    return problem(name, f"{detail}; {_REASONS[name]}" if older else detail, remedy)


def legacy_keras(environment: Mapping[str, str], tensorflow: str | None, tf_keras: str | None) -> Finding | None:
    """Whether tf_keras (Keras 2) is there where it is asked for, and is the one of this TensorFlow; None where unused."""
    asked = environment.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if tensorflow is None or (tf_keras is None and not asked):
        return None
    release = _minor(tensorflow)
    remedy = f"Run pip install 'tf_keras~={release}.0'."
    if tf_keras is None:
        return problem(
            "tf_keras", "TF_USE_LEGACY_KERAS is set, but tf_keras is not installed: tf.keras cannot be used", remedy
        )
    if _minor(tf_keras) != release:
        return (problem if asked else warning)(
            "tf_keras", f"{tf_keras} belongs to TensorFlow {_minor(tf_keras)}, and {tensorflow} is installed", remedy
        )
    return ok("tf_keras", "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2") if asked else None


def _minor(version: str) -> str:
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"


def keras_backend(environment: Mapping[str, str], configured: str | None) -> Finding:
    """Whether Keras uses TensorFlow; `configured` is the backend that its file names, which the environment overrides."""
    named = environment.get("KERAS_BACKEND")
    used = named or configured or "tensorflow"
    if used == "tensorflow":
        return ok("keras backend", used)
    by = "KERAS_BACKEND" if named else "the file keras.json"
    return problem(
        "keras backend", f"{used}, by {by}; so far autofit takes tensorflow", "Run export KERAS_BACKEND=tensorflow."
    )


def configured_backend(environment: Mapping[str, str]) -> str | None:
    """The backend that Keras's file names, where Keras looks for it; None where there is none."""
    named = keras_file(environment).get("backend")
    return named if isinstance(named, str) else None


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What this shell's environment tells TensorFlow, and what that means for trials."""
    growth = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth not in (None, "true", "false"):
        yield warning(
            "environment",
            f"TF_FORCE_GPU_ALLOW_GROWTH={growth} is neither true nor false: TensorFlow ignores it",
            "Write true or false, or run unset TF_FORCE_GPU_ALLOW_GROWTH.",
        )
    xla = environment.get("XLA_FLAGS", "")
    if "xla_dump" in xla:
        yield warning(
            "environment",
            f"XLA_FLAGS={xla}: XLA writes files at each compilation, which slows every trial",
            "Run unset XLA_FLAGS before tuning.",
        )
    elif xla:
        yield ok("environment", f"XLA_FLAGS={xla}: passed on to every trial; train with the same")
    onednn = environment.get("TF_ENABLE_ONEDNN_OPTS")
    if onednn is not None:
        yield ok(
            "environment",
            f"TF_ENABLE_ONEDNN_OPTS={onednn}: changes rate and memory on a CPU; train with the same. "
            "Results with another value are kept apart",
        )


def version_of(distribution: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements_of(distribution: str) -> list[str]:
    """What an installed distribution requires; nothing where it is not installed."""
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def python_wanted() -> str:
    """The Python versions that autofit supports, as a specifier; empty where it is not installed."""
    try:
        return importlib.metadata.metadata("autofit")["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        return ""
