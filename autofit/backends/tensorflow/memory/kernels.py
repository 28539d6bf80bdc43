"""The workspace sizes of TensorFlow's CPU kernels, and the kernels that reuse an input's buffer.

The rules come from the kernels' source (TensorFlow 2.21, tensorflow/core/kernels) and agree with the allocations that
TensorFlow's profiler records on a CPU without oneDNN. oneDNN's kernels for convolutions, pooling and matrix products do not
gather patches. Like every kernel without a rule, they count as having no workspace.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

Shape = Sequence[int]

_CACHE_BYTES = 30 * 2**20  # 2-D convolutions gather patches until the matrices reach this size (conv_grad_*_ops.cc)
# 3-D convolutions gather patches until the matrices reach the size of the L3 cache (conv_grad_ops_3d.cc)
_THIRD_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_MOST_OVERHEAD = 25  # 3-D patches are not gathered if they would exceed this multiple of the operation's tensors
_COMPLEXES = 8  # L3 caches of an EPYC processor; Linux shows the size of one
_INDEX_BYTES = 8  # maxpooling_op.cc: MaxPoolGrad finds the maxima again and keeps their 64-bit indices
_SINGLE_BYTES = 4

OVERWRITES = frozenset(
    """Abs Add AddN AddV2 BiasAdd Ceil ClipByValue Cos DivNoNan Elu EluGrad Erf Erfc Exp Expm1 Floor FloorMod
    FusedBatchNormV3 LeakyRelu LeakyReluGrad Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum
    Mul MulNoNan Neg Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Round Rsqrt RsqrtGrad
    SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad Sqrt SqrtGrad Square
    SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy""".split()  # noqa: SIM905  # a literal would take a line for each name
)
"""Kernels that write their output into the buffer of an input that has the same size and no other readers."""

OVERWRITING_OUTPUTS = {"SoftmaxCrossEntropyWithLogits": 1, "SparseSoftmaxCrossEntropyWithLogits": 1}
"""Index of the output that overwrites an input, by kernel, if not 0: the gradient of a loss overwrites the logits."""

VIEWS = frozenset(
    """CheckNumerics EnsureShape Enter Exit ExpandDims Identity PreventGradient ReadVariableOp Reshape Snapshot
    Squeeze StopGradient""".split()  # noqa: SIM905  # as above
)
"""Kernels whose output shares the buffer of their input."""

OF_SHAPES = frozenset({"BroadcastGradientArgs", "OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
"""Kernels whose result depends only on the shapes of their inputs."""

UPDATES = frozenset(
    """AssignAddVariableOp AssignSubVariableOp AssignVariableOp ResourceScatterAdd ResourceScatterNdAdd ResourceScatterSub
    ResourceScatterUpdate ResourceStridedSliceAssign""".split()  # noqa: SIM905  # as above
)
"""Kernels that change a variable, which is their first input."""


def onednn_takes(dtype: str, flags: Collection[str], *, onednn: bool) -> bool:
    """Return whether oneDNN runs the convolutions, poolings and matrix products of a dtype.

    `onednn` says whether TensorFlow uses oneDNN at all; if not, the answer is False.

    The rule is that of `IsDataTypeSupportedByOneDNNOnThisCPU` (TensorFlow 2.21, tensorflow/core/util/util.cc), with one
    exception: TensorFlow also allows half precision on processors with AVX-NE-CONVERT, but Linux does not list this
    feature. On such a processor, the workspaces of half precision are therefore overestimated. `flags` are the
    processor's features as /proc/cpuinfo names them.
    """
    if dtype == "float16":
        return onednn and "avx512bw" in flags and ("avx512_fp16" in flags or "amx_fp16" in flags)
    return onednn and (dtype == "float32" or (dtype == "bfloat16" and "avx512f" in flags))


@functools.cache
def processor_flags() -> frozenset[str]:
    """Return the features of this processor, as /proc/cpuinfo names them; empty if it names none."""
    listed = re.search(r"^flags\s*:(.*)", _cpuinfo(), re.MULTILINE)
    return frozenset(listed[1].split()) if listed else frozenset()


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def workspace_bytes(
    kind: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    item_bytes: int,
    *,
    onednn: bool = False,
    equation: str = "",
) -> tuple[int, ...]:
    """Return the sizes in bytes of the buffers that a kernel allocates and frees while it runs on a CPU.

    `kind` is the operation's type, `item_bytes` is the size of an element of the output, and `equation` is the equation of
    an Einsum. `onednn` is true if the kernel is oneDNN's.
    """
    sizes: tuple[int, ...] = ()
    match kind:
        case "Einsum":
            sizes = _transposed(equation, inputs, outputs, item_bytes)
        case _ if onednn:
            pass
        case "Conv2DBackpropFilter":
            sizes = (_patch_bytes(inputs[2], outputs[0], item_bytes, _CACHE_BYTES),)
        case "Conv2DBackpropInput":
            sizes = (_patch_bytes(inputs[2], inputs[1], item_bytes, _CACHE_BYTES),)
        case "Conv3DBackpropFilterV2":
            sizes = _worthwhile((inputs[0], outputs[0], inputs[2]), outputs[0], item_bytes)
        case "Conv3DBackpropInputV2":
            sizes = _worthwhile((outputs[0], inputs[1], inputs[2]), inputs[1], item_bytes)
        case "DepthwiseConv2dNativeBackpropFilter":
            sizes = (inputs[2][0] * math.prod(outputs[0]) * item_bytes,)
        case "MaxPoolGrad":
            sizes = (math.prod(inputs[1]) * item_bytes, math.prod(inputs[1]) * _INDEX_BYTES)
        case "MatMul" | "BatchMatMulV2" if item_bytes < _SINGLE_BYTES:  # single-precision copies of factors and product
            sizes = tuple(_SINGLE_BYTES * math.prod(shape) for shape in (*inputs[:2], outputs[0]))
    return sizes


def _patch_bytes(gradient: Shape, kernel: Shape, item_bytes: int, cache_bytes: int) -> int:
    """Return the size in bytes of the patch matrix (im2col) for as many images as fill the cache."""
    image, taps, depth = math.prod(gradient[1:-1]), math.prod(kernel[:-1]), kernel[-1]
    one = image * taps + image * depth + taps * depth
    return -(-(cache_bytes // item_bytes) // one) * image * taps * item_bytes


def _worthwhile(tensors: tuple[Shape, Shape, Shape], kernel: Shape, item_bytes: int) -> tuple[int, ...]:
    """Return the size of the gathered patches in bytes; empty if it would far exceed the operation's tensors."""
    gathered = _patch_bytes(tensors[2], kernel, item_bytes, _third_cache_bytes())
    return (gathered,) if gathered <= _MOST_OVERHEAD * item_bytes * sum(math.prod(t) for t in tensors) else ()


@functools.cache
def _third_cache_bytes() -> int:
    """Return the L3 cache size that Eigen uses, in bytes: on an EPYC, that of all eight caches; Linux shows only one."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(_THIRD_CACHE.read_text().strip() + "iB"))
        return size * (_COMPLEXES if "EPYC" in _cpuinfo() else 1)
    except (OSError, ValidationError):
        return _CACHE_BYTES


def _transposed(equation: str, inputs: Sequence[Shape], outputs: Sequence[Shape], item_bytes: int) -> tuple[int, ...]:
    """Return the sizes in bytes of the copies that an Einsum makes to multiply matrices (einsum_op_impl.h).

    With and without oneDNN, it transposes a factor whose labels are not in the order (batch, free, contracted) or
    (batch, contracted, free), and the product if its order is not that of the output.
    """
    if "." in equation:
        return ()
    sides, _, result = equation.partition("->")
    factors = sides.split(",")
    number = {label: index for index, label in enumerate(dict.fromkeys("".join((*factors, result))))}

    def order(label: str, *, free_last: bool = False) -> tuple[int, int]:
        is_free = sum(label in factor for factor in factors) == 1
        group = 0 if label in result and not is_free else 1 + (is_free is free_last)
        return group, number[label]

    copied = []
    for factor, shape in zip(factors, inputs, strict=True):
        sorted_ways = [sorted(factor, key=functools.partial(order, free_last=last)) for last in (False, True)]
        if list(factor) not in sorted_ways:
            copied.append(math.prod(shape) * item_bytes)
    shared = [label for label in number if all(label in factor for factor in factors) and label in result]
    free = [label for factor in factors for label in sorted(factor, key=number.__getitem__) if label not in shared]
    if [*shared, *(label for label in free if label in result)] != list(result):
        copied.append(math.prod(outputs[0]) * item_bytes)
    return tuple(copied)
