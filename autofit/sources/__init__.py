"""What a workload's functions are made of, read from their files: nothing is imported, nothing is run."""

from autofit.sources.modules import file_of, is_own
from autofit.sources.syntax import of_text
from autofit.sources.walk import Reached, Walk

__all__ = ["Reached", "Walk", "file_of", "is_own", "of_text"]
