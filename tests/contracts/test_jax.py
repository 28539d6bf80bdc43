from tests.contracts.cases import Contract


class TestJax(Contract):
    backend = "jax"
