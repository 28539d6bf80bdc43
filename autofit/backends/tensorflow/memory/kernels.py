"""What TensorFlow's kernels hold while they run, beside inputs and outputs, and which of them write over an input.

Read in the kernels' source (TensorFlow 2.21, tensorflow/core/kernels) and checked against the allocations that
TensorFlow's profiler records on a CPU without oneDNN. oneDNN brings kernels of its own for convolutions, pooling and matrix
products, which do not gather patches; they are taken to need nothing, like every kernel that is not named here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

Shape = Sequence[int]

_CACHE_BYTES = 30 * 2**20  # conv_grad_*_ops.cc: images are gathered until the matrices reach this,
_THIRD_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # conv_grad_ops_3d.cc: or the processor's own,
_PROCESSORS = Path("/proc/cpuinfo")
_COMPLEXES = 8
_MOST_OVERHEAD = 25  # unless they would take so many times what the inputs take
_INDEX_BYTES = 8  # maxpooling_op.cc: MaxPoolGrad finds the maxima again and keeps their 64-bit places
_SINGLE_BYTES = 4

OVERWRITES = frozenset(  # one line a dozen names, not one a name
    """Abs Add AddN AddV2 BiasAdd ClipByValue DivNoNan Elu EluGrad Erf Erfc Exp Expm1 Floor FusedBatchNormV3 LeakyRelu
    LeakyReluGrad Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg Pow RealDiv
    Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Softmax
    Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad""".split()  # noqa: SIM905
)
"""Kernels that put their output into the buffer of an input of the same size that nobody else reads."""

VIEWS = frozenset(
    """CheckNumerics EnsureShape Enter Exit ExpandDims Identity IdentityN PreventGradient ReadVariableOp Reshape Snapshot
    Squeeze StopGradient""".split()  # noqa: SIM905
)
"""Kernels whose output shares the buffer of the input."""


def workspace_bytes(
    kind: str, inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int, *, onednn: bool = False
) -> tuple[int, ...]:
    """The buffers a kernel holds while it runs on a CPU, in bytes.

    Args:
        kind: the operation's type.
        inputs: shapes of the inputs.
        outputs: shapes of the outputs.
        item_bytes: bytes of one element of the output.
        onednn: whether TensorFlow uses oneDNN's kernels.
    """
    rule = None if onednn else _RULES.get(kind)
    return rule(inputs, outputs, item_bytes) if rule else ()


def _gathered_images(image: int, kernel: Shape, item_bytes: int, cache_bytes: int) -> int:
    """The matrix of patches (im2col) of as many images as fill the cache, bytes."""
    taps, depth = math.prod(kernel[:-1]), kernel[-1]
    one = image * taps + image * depth + taps * depth
    return -(-(cache_bytes // item_bytes) // one) * image * taps * item_bytes


def _filter_gradient(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    return (_gathered_images(math.prod(inputs[2][1:-1]), outputs[0], item_bytes, _CACHE_BYTES),)


def _input_gradient(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    return (_gathered_images(math.prod(inputs[2][1:-1]), inputs[1], item_bytes, _CACHE_BYTES),)


def _filter_gradient_3d(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    return _worthwhile((inputs[0], outputs[0], inputs[2]), outputs[0], item_bytes)


def _input_gradient_3d(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    return _worthwhile((outputs[0], inputs[1], inputs[2]), inputs[1], item_bytes)


def _worthwhile(tensors: tuple[Shape, Shape, Shape], kernel: Shape, item_bytes: int) -> tuple[int, ...]:
    """The gathered volumes, or nothing where they would be far larger than images, kernel and gradient together."""
    gathered = _gathered_images(math.prod(tensors[2][1:-1]), kernel, item_bytes, _third_cache_bytes())
    return (gathered,) if gathered <= _MOST_OVERHEAD * item_bytes * sum(math.prod(t) for t in tensors) else ()


@functools.cache
def _third_cache_bytes() -> int:
    """The size of the third-level cache as Eigen takes it, as far as the system tells.

    Eigen asks the processor, and an EPYC answers for the whole package, where the system shows one of its eight complexes.
    """
    try:
        shown = int(TypeAdapter(ByteSize).validate_python(_THIRD_CACHE.read_text().strip() + "iB"))
        return shown * (_COMPLEXES if "EPYC" in _PROCESSORS.read_text() else 1)
    except (OSError, ValidationError):
        return _CACHE_BYTES


def _pool_gradient(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    pooled = math.prod(inputs[1])
    return (pooled * item_bytes, pooled * _INDEX_BYTES)


def _filter_gradient_of_depthwise(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    return (inputs[2][0] * math.prod(outputs[0]) * item_bytes,)


def _product(inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    """Half precision is multiplied in single precision: both factors and the product are held in it."""
    return tuple(_SINGLE_BYTES * math.prod(s) for s in (*inputs[:2], outputs[0])) if item_bytes < _SINGLE_BYTES else ()


_RULES: Mapping[str, Callable[[Sequence[Shape], Sequence[Shape], int], tuple[int, ...]]] = {
    "BatchMatMulV2": _product,
    "Conv2DBackpropFilter": _filter_gradient,
    "Conv2DBackpropInput": _input_gradient,
    "Conv3DBackpropFilterV2": _filter_gradient_3d,
    "Conv3DBackpropInputV2": _input_gradient_3d,
    "DepthwiseConv2dNativeBackpropFilter": _filter_gradient_of_depthwise,
    "MatMul": _product,
    "MaxPoolGrad": _pool_gradient,
}
