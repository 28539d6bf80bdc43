"""The seconds that JAX compiles for batches of new shapes, which no other backend reports."""

from tests.commands import python

PROGRAM = """\
import jax
import jax.numpy as jnp
from autofit import backends

seconds = backends.named("jax").compile_clock()
double = jax.jit(lambda x: 2 * x)
for size in (3, 3, 4):
    x = jnp.ones(size).block_until_ready()
    before = seconds()
    double(x).block_until_ready()
    print(seconds() > before)
"""


def test_each_new_shape_is_compiled_once():
    printed = python("-c", PROGRAM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    assert printed.split() == ["True", "False", "True"]
