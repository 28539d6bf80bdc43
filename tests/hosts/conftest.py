import os

import pytest

from tests.installed import needs


class Hosts:
    """A Ray cluster of processes on this machine: a head that does not measure, and hosts that do."""

    def __init__(self, count):
        os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112  # the name that Ray reads
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        from ray.cluster_utils import Cluster

        os.environ.pop("OMP_NUM_THREADS", None)  # set in this process by libraries of other tests
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "node_name": "head"})
        self.count = 0
        self.nodes = {}
        for number in range(count):
            self.add("small" if number else "big")

    def add(self, label):
        """Add a host, labelled with its class."""
        name = f"host{self.count}"
        self.nodes[name] = self.cluster.add_node(
            num_cpus=1, resources={"measuring": 1}, node_name=name, labels={"class": label}, include_dashboard=False
        )
        self.count += 1

    def kill(self, name):
        """Kill every process of a host, as a power failure does."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="session")
def standing():
    """Three hosts that all tests share and none kills."""
    needs("ray")
    made = Hosts(3)
    yield made
    made.close()


@pytest.fixture
def hosts(standing, monkeypatch):
    """Three hosts: the first is labelled big, the others small."""
    monkeypatch.setenv("RAY_ADDRESS", standing.cluster.address)
    return standing


@pytest.fixture
def mortal(monkeypatch):
    """Three hosts of one test, which may kill them."""
    needs("ray")
    made = Hosts(3)
    monkeypatch.setenv("RAY_ADDRESS", made.cluster.address)
    yield made
    made.close()
