"""CPU quotas and OOM kills from cgroup files of the test's own."""

import pytest

from autofit.machine import host


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A cgroup tree of the test's own: write(path, text)."""
    monkeypatch.setattr(host, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(host, "_OWN_CGROUPS", tmp_path / "own")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_cgroups_of_version_2(cgroup):
    cgroup("own", "0::/a/b\n")
    cgroup("a/b/cpu.max", "max 100000\n")
    assert (host.cpu_quota(), host.oom_kills()) == (None, 0)
    cgroup("a/cpu.max", "150000 100000\n")
    cgroup("a/b/memory.events", "oom 1\noom_kill 3\n")
    assert (host.cpu_quota(), host.oom_kills()) == (1.5, 3)
    for name, text in (
        ("max", "1000000"),
        ("current", "600000"),
        ("stat", "anon 500000\ninactive_file 100000"),
    ):
        cgroup(f"a/b/memory.{name}", text)
    machine = host.detect(())
    assert (machine.memory_bytes, machine.available_bytes) == (
        1_000_000,
        500_000,
    )  # the kernel frees what is inactive
    assert host.usable_cores() == min(2, host.visible_cores())


def test_cgroups_of_version_1(cgroup):
    cgroup("own", "4:memory:/a\n2:cpu,cpuacct:/a\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n")
    cgroup("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    cgroup("memory/a/memory.oom_control", "oom_kill 2\n")
    cgroup("memory/a/memory.limit_in_bytes", "1000000")
    cgroup("memory/a/memory.usage_in_bytes", "900000")
    assert (host.cpu_quota(), host.oom_kills(), host.detect(()).available_bytes) == (
        None,
        2,
        100_000,
    )
    cgroup("cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n")
    assert (host.cpu_quota(), host.usable_cores()) == (0.5, 1)
