import pytest

from autofit import devices


def pytest_collection_modifyitems(items):
    if devices.nvidia_devices():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="the NVIDIA driver reports no GPU on this machine"))
