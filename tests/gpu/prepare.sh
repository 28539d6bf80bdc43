#!/usr/bin/env bash
# Fills a folder with what a visit needs on a machine without a network: bash tests/gpu/prepare.sh FOLDER THERE [PYTHON]
# THERE is a file with the packages of that machine (name==version, a line each), and PYTHON its version. See README.md.
set -euo pipefail
folder=$(realpath -m "$1") there=$(realpath "$2") python=${3:-3.12}
cd "$(dirname "$0")/../.."
rm -rf "$folder/wheels"
mkdir -p "$folder/wheels"
cp tests/gpu/{visit,stages,trials,fits,report,plain,jobs}.py "$folder"
python3 -m pip wheel -q --no-deps -w "$folder/wheels" .

# What autofit needs and that machine lacks or has too old, in the versions of this environment. TensorFlow is left out for its
# size.
packages=$(python3 - "$there" "$python" <<'PYTHON'
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_, there, python = sys.argv
listed = [line.partition("==") for line in Path(there).read_text().split()]
present = {canonicalize_name(name): version for name, _, version in listed} | {"tensorflow": ""}
lacking, pending = {}, ["keras-autofit"]
if "pillow" not in present:  # for the JPEG files
    lacking["pillow"] = metadata.version("pillow")
while pending:
    for requirement in map(Requirement, metadata.requires(pending.pop()) or ()):
        name, marker = canonicalize_name(requirement.name), requirement.marker
        is_needed = marker is None or marker.evaluate({"python_version": python, "extra": ""})
        version = present.get(name)
        # without a version, it is taken to be new enough
        is_there = version == "" or (version and requirement.specifier.contains(version, prereleases=True))
        if is_needed and not is_there and name not in lacking:
            lacking[name] = metadata.version(name)
            pending.append(name)
print(*(f"{name}=={version}" for name, version in lacking.items()))
PYTHON
)
platforms=()
for tag in _2_28 _2_27 _2_24 _2_17 2014 1; do platforms+=(--platform "manylinux${tag}_x86_64"); done
python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
    "${platforms[@]}" -d "$folder/wheels" $packages
du -sh "$folder"
