"""What a workload's functions are made of, read from their files: nothing is imported, nothing is run."""

from __future__ import annotations

from autofit.workload.fingerprint.modules import file_of, is_own
from autofit.workload.fingerprint.reachable import Reached, Walk
from autofit.workload.fingerprint.source_file import of_text

__all__ = ["Reached", "Walk", "file_of", "is_own", "of_text"]
