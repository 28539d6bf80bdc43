"""What a search starts from."""

from dataclasses import replace

import pytest

from autofit.tuning import prepare
from tests.fakes import DESCRIPTION, make_request


class Study:
    """Remembers the key under which similar tunes are looked for."""

    def set_attribute(self, name, key):
        self.key = key

    def similar_trials(self, key):
        return ()


@pytest.mark.parametrize(("backend", "same"), [("tensorflow", True), ("jax", False), ("torch", False)])
def test_a_tune_on_another_backend_is_no_similar_one(tmp_path, backend, same):
    keys = []
    for described in (DESCRIPTION, replace(DESCRIPTION, versions={"backend": backend})):
        study = Study()
        prepare.warm_start(make_request(tmp_path), study, described)
        keys.append(study.key)
    assert (keys[0] == keys[1]) is same
