"""A PostgreSQL server of a test's own."""

import random
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

POSTGRES = Path("/usr/lib/postgresql")


class Postgres:
    """A PostgreSQL server of its own, in a folder, on a socket."""

    def __init__(self):
        self.bin = max(POSTGRES.iterdir()) / "bin"
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-pg-"))
        shutil.chown(self.folder, "postgres", "postgres")
        self.port = random.SystemRandom().randrange(20_000, 60_000)
        self.lock = threading.Lock()
        self._as("initdb", "-D", self.folder / "data", "-A", "trust", "--no-sync")
        self.start()

    def _as(self, program, *arguments, check=True):
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", self.bin / program, *arguments]
        return subprocess.run([str(part) for part in command], check=check, capture_output=True, timeout=280, cwd="/")

    def start(self):
        options = f"-p {self.port} -k {self.folder} -c fsync=off"
        self._as("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "-o", options, "start")

    def create(self, name):
        with self.lock:
            self._as("dropdb", "--if-exists", "-h", self.folder, "-p", str(self.port), name)
            self._as("createdb", "-h", self.folder, "-p", str(self.port), name)

    def url(self, name):
        return f"postgresql://postgres@/{name}?host={self.folder}&port={self.port}"

    def close(self):
        self._as("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
