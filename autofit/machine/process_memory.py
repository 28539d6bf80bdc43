"""Host memory of one process, as the kernel counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

_KIB = 1024


@dataclass(frozen=True)
class ProcessMemory:
    """Host memory of a process, bytes.

    `proportional` counts a shared page in parts, one for each process that maps it (PSS); `proportional_files` is its part
    of files, of which the libraries of a backend are most. `written` are private pages that the process or its parent has
    written since one forked the other, `own_files` pages of files: nobody else maps either. `resident` counts all pages
    (RSS), `resident_files` those of files, and `highest_resident` is the most that `resident` has been, however shortly.
    """

    proportional: int
    proportional_files: int
    written: int
    own_files: int
    resident: int
    resident_files: int
    highest_resident: int

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessMemory:
        """Read a process; where the system does not count as Linux does, only what cannot be shared.

        Raises:
            psutil.Error: it has ended, or belongs to somebody else.
        """
        try:
            rollup = _sizes(process.pid, "smaps_rollup")
            status = _sizes(process.pid, "status")
            # of files just written, as libraries just installed, and of shared memory
            dirty_mapped = max(0, rollup.get("Pss_Dirty", 0) - rollup["Pss_Anon"])
            return cls(
                proportional=rollup["Pss"],
                proportional_files=rollup["Pss_File"],
                written=max(0, rollup["Private_Dirty"] - dirty_mapped),
                own_files=rollup["Private_Clean"] + max(0, dirty_mapped - rollup["Pss_Shmem"]),
                resident=rollup["Rss"],
                resident_files=status["RssFile"],
                highest_resident=status["VmHWM"],
            )
        except (OSError, KeyError):
            memory = process.memory_full_info()
            return cls(getattr(memory, "pss", memory.uss), 0, 0, 0, memory.rss, 0, memory.rss)


def _sizes(pid: int, name: str) -> dict[str, int]:
    """The sizes in one of a process's files of the form `Name:  12 kB`."""
    lines = (line.split() for line in Path(f"/proc/{pid}/{name}").read_text(errors="replace").splitlines())
    return {words[0][:-1]: int(words[1]) * _KIB for words in lines if words[-1:] == ["kB"] and len(words) == 3}
