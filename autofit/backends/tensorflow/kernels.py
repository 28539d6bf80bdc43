"""The workspaces of TensorFlow's CPU kernels, and the kernels that share or reuse an input's buffer.

The rules come from the kernels' source (TensorFlow 2.21, tensorflow/core/kernels) and agree with the allocations that
TensorFlow's profiler records on a CPU without oneDNN. oneDNN's kernels for convolutions, pooling and matrix products do not
gather patches. Like every kernel without a rule, they count as having no workspace.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

_CACHE_BYTES = 30 * 2**20  # 2-D convolutions gather patches until the matrices reach this size (conv_grad_*_ops.cc)
_LEVEL3_CACHE_SIZE = 194  # of sysconf in the GNU C library; Python has no name for it
_MOST_OVERHEAD = 25  # 3-D patches are not gathered if they exceed this multiple of the operation's tensors
_INDEX_BYTES = 8  # maxpooling_op.cc: MaxPoolGrad finds the maxima again and keeps their 64-bit indices
_SINGLE_BYTES = 4

ONEDNN_TYPES = ("float32", "bfloat16")
"""The types whose convolutions, poolings and products oneDNN computes; half precision needs an AVX-512 FP16 processor."""

OVERWRITES = frozenset(
    """Abs Add AddN AddV2 BiasAdd Ceil ClipByValue Cos DivNoNan Elu EluGrad Erf Erfc Exp Expm1 Floor FloorMod
    FusedBatchNormV3 LeakyRelu LeakyReluGrad Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum
    Mul MulNoNan Neg Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Round Rsqrt RsqrtGrad
    SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad Sqrt SqrtGrad Square
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits SquaredDifference Sub Tanh TanhGrad Xdivy
    Xlogy""".split()  # noqa: SIM905  # a literal would take a line for each name
)
"""Kernels that write their output into the buffer of an input that has the same size and no other readers."""

VIEWS = frozenset(
    """CheckNumerics EnsureShape Enter Exit ExpandDims Identity IdentityN PreventGradient Reshape Snapshot Squeeze
    StopGradient""".split()  # noqa: SIM905  # as above
)
"""Kernels whose output shares the buffer of their input."""

OF_SHAPES = frozenset({"BroadcastGradientArgs", "OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
"""Kernels whose result depends only on the shapes of their inputs."""


def workspace_bytes(
    kind: str, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], item_bytes: int, *, onednn: bool = False
) -> tuple[int, ...]:
    """Return the sizes in bytes of the buffers that a kernel of type `kind` allocates and frees while it runs on a CPU."""
    sizes: tuple[int, ...] = ()
    match kind:
        # transposed to be multiplied as matrices, if labels are in another order: factors and product (einsum_op_impl.h)
        case "Einsum":
            sizes = tuple(item_bytes * math.prod(shape) for shape in (*inputs, *outputs))
        case _ if onednn:
            pass
        case "Conv2DBackpropFilter" | "Conv2DBackpropInput":
            sizes = (_patch_bytes(inputs[2], outputs[0] if "Filter" in kind else inputs[1], item_bytes),)
        case "Conv3DBackpropFilterV2" | "Conv3DBackpropInputV2":
            image, kernel = (inputs[0], outputs[0]) if "Filter" in kind else (outputs[0], inputs[1])
            patches = _patch_bytes(inputs[2], kernel, item_bytes, _third_cache_bytes())
            if patches <= _MOST_OVERHEAD * item_bytes * sum(map(math.prod, (image, kernel, inputs[2]))):
                sizes = (patches,)
        case "DepthwiseConv2dNativeBackpropFilter":
            sizes = (inputs[2][0] * math.prod(outputs[0]) * item_bytes,)
        case "MaxPoolGrad":
            sizes = (math.prod(inputs[1]) * item_bytes, math.prod(inputs[1]) * _INDEX_BYTES)
        case "MatMul" | "BatchMatMulV2" if item_bytes < _SINGLE_BYTES:  # single-precision copies of factors and product
            sizes = tuple(_SINGLE_BYTES * math.prod(shape) for shape in (*inputs[:2], outputs[0]))
    return sizes


def _patch_bytes(gradient: Sequence[int], kernel: Sequence[int], item_bytes: int, cache_bytes: int = _CACHE_BYTES) -> int:
    """Return the size in bytes of the patch matrix (im2col) for as many images as fill the cache."""
    image, taps, depth = math.prod(gradient[1:-1]), math.prod(kernel[:-1]), kernel[-1]
    one = image * taps + image * depth + taps * depth
    return -(-(cache_bytes // item_bytes) // one) * image * taps * item_bytes


def _third_cache_bytes() -> int:
    """Return the size that 3-D convolutions gather patches for, in bytes: the L3 cache (conv_grad_ops_3d.cc)."""
    try:
        return os.sysconf(_LEVEL3_CACHE_SIZE) or _CACHE_BYTES
    except (OSError, ValueError):
        return _CACHE_BYTES
