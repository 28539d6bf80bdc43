"""How TensorFlow runs a step: what its CPU kernels hold, and the highest sum of live buffers as its
executor runs them.
"""

from __future__ import annotations

import heapq
import math
import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

# 2-D convolutions gather patches until the matrices reach this size (conv_grad_*_ops.cc)
_CACHE_BYTES = 30 * 2**20
_LEVEL3_CACHE_SIZE = 194  # of sysconf in the GNU C library; Python has no name for it
# 3-D patches are not gathered if they exceed this multiple of the operation's tensors
_MOST_OVERHEAD = 25
# maxpooling_op.cc: MaxPoolGrad finds the maxima again and keeps their 64-bit indices
_INDEX_BYTES = 8
_SINGLE_BYTES = 4

# of the convolutions, poolings and products that oneDNN computes; half precision needs an AVX-512
# FP16 processor
ONEDNN_TYPES = ("float32", "bfloat16")

# kernels that write their output into the buffer of an input that has the same size and no other
# readers
OVERWRITES = frozenset(
    """Abs Add AddN AddV2 BiasAdd Ceil ClipByValue Cos DivNoNan Elu EluGrad Erf Erfc Exp Expm1
    Floor FloorMod FusedBatchNormV3 LeakyRelu LeakyReluGrad Log Log1p LogSoftmax LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal ReciprocalGrad
    Relu Relu6 Relu6Grad ReluGrad Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid
    SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad Sqrt SqrtGrad Square
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits SquaredDifference Sub Tanh
    TanhGrad Xdivy Xlogy""".split()  # noqa: SIM905  # a literal would take a line for each name
)

# kernels whose output shares the buffer of their input
VIEWS = frozenset(
    """CheckNumerics EnsureShape Enter Exit ExpandDims Identity IdentityN PreventGradient
    Reshape Snapshot Squeeze StopGradient""".split()  # noqa: SIM905  # as above
)

# kernels whose result depends only on the shapes of their inputs
OF_SHAPES = frozenset(
    {
        "BroadcastGradientArgs",
        "OnesLike",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "ZerosLike",
    }
)


def workspace_bytes(
    kind: str,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    item_bytes: int,
    *,
    onednn: bool = False,
) -> list[int]:
    """Return the sizes in bytes of the buffers that a kernel of type `kind` allocates and frees
    while it runs on a CPU.
    """
    # The rules come from the kernels' source (TensorFlow 2.21, tensorflow/core/kernels) and agree
    # with the allocations that TensorFlow's profiler records on a CPU without oneDNN. oneDNN's
    # kernels for convolutions, pooling and matrix products do not gather patches. Like every kernel
    # without a rule, they count as having no workspace.
    tensors = [item_bytes * math.prod(shape) for shape in (*inputs, *outputs)]
    sizes = []
    match kind:
        # transposed to be multiplied as matrices, if labels are in another order: factors and
        # product (einsum_op_impl.h)
        case "Einsum":
            sizes = tensors
        case _ if onednn:
            pass
        case "Conv2DBackpropFilter" | "Conv2DBackpropInput":
            sizes = [
                _patch_bytes(
                    inputs[2], outputs[0] if "Filter" in kind else inputs[1], item_bytes
                )
            ]
        case "Conv3DBackpropFilterV2" | "Conv3DBackpropInputV2":
            kernel = outputs[0] if "Filter" in kind else inputs[1]
            patches = _patch_bytes(inputs[2], kernel, item_bytes, _third_cache_bytes())
            sizes = [patches] if patches <= _MOST_OVERHEAD * sum(tensors) else []
        case "DepthwiseConv2dNativeBackpropFilter":
            sizes = [inputs[2][0] * tensors[-1]]
        case "MaxPoolGrad":
            sizes = [tensors[1], math.prod(inputs[1]) * _INDEX_BYTES]
        case "MatMul" | "BatchMatMulV2" if (
            item_bytes < _SINGLE_BYTES
        ):  # single-precision copies of factors and product
            sizes = [size * _SINGLE_BYTES // item_bytes for size in tensors]
    return sizes


def _patch_bytes(
    gradient: Sequence[int],
    kernel: Sequence[int],
    item_bytes: int,
    cache_bytes: int = _CACHE_BYTES,
) -> int:
    # the patch matrix (im2col) for as many images as fill the cache
    image = math.prod(gradient[1:-1])
    taps = math.prod(kernel[:-1])
    depth = kernel[-1]
    one = image * taps + image * depth + taps * depth
    return -(-(cache_bytes // item_bytes) // one) * image * taps * item_bytes


def _third_cache_bytes() -> int:
    # 3-D convolutions gather patches for the L3 cache (conv_grad_ops_3d.cc)
    try:
        return os.sysconf(_LEVEL3_CACHE_SIZE) or _CACHE_BYTES
    except (OSError, ValueError):
        return _CACHE_BYTES


@dataclass(eq=False)
class Buffer:
    """Memory of a tensor, and of all tensors that share it, such as its reshaped forms."""

    size_bytes: int
    part: str


@dataclass(eq=False)
class Operation:
    """An operation that starts when those with the numbers `after` have ended.

    If it `overwrites`, what it makes takes over the memory of what it reads, if that has the same
    size and no other reader.
    """

    reads: Sequence[Buffer]
    # a buffer that no operation reads is a workspace: it is freed when this one ends
    makes: Sequence[Buffer]
    after: Collection[int]
    overwrites: bool
    seconds: float  # a rough duration that only decides which operations overlap


# Durations vary from step to step, and so do the overlaps: the highest of several runs with random
# durations counts. With two threads a single run would do, with eight it is up to a third too low
# (measured: tests/benchmarks/memory-parts.txt).
_RUNS = 3
# of a duration's logarithm: on busy cores an operation takes half or twice as long
_DEVIATION = 0.5


def peak(
    operations: Sequence[Operation], results: Sequence[Buffer], threads: int
) -> Counter[str]:
    """Return the bytes of each part at the highest peak of several steps; `threads` operations run
    at the same time.
    """
    chance = random.Random(0)
    return max(
        (_run(operations, results, threads, chance) for _ in range(_RUNS)),
        key=Counter.total,
    )


def _run(
    operations: Sequence[Operation],
    results: Sequence[Buffer],
    threads: int,
    chance: random.Random,
) -> Counter[str]:
    # A buffer is live from the start of the operation that makes it until the last operation that
    # reads it has ended; `results` stay. A free thread takes the operation that became ready last.
    left = Counter(
        buffer for op in operations for buffer in (*op.reads, *op.makes)
    ) + Counter(results)
    order = TopologicalSorter(
        {number: op.after for number, op in enumerate(operations)}
    )
    order.prepare()
    ready = list(order.get_ready())
    # end and number of each running operation
    running = list[tuple[float, int]]()
    in_use = Counter[str]()
    at_peak = Counter[str]()
    now = 0.0
    while ready or running:
        while ready and len(running) < threads:
            op = operations[number := ready.pop()]
            for buffer in op.makes:
                in_use[buffer.part] += buffer.size_bytes
                same = (
                    b
                    for b in op.reads
                    if op.overwrites
                    and left[b] == 1
                    and b.size_bytes == buffer.size_bytes
                )
                if (reused := next(same, None)) is not None:
                    left[reused] = 0  # so that it is not released again
                    in_use[reused.part] -= reused.size_bytes
            if in_use.total() > at_peak.total():
                at_peak = in_use.copy()
            heapq.heappush(
                running,
                (now + op.seconds * chance.lognormvariate(0, _DEVIATION), number),
            )
        now, number = heapq.heappop(running)
        for buffer in (*operations[number].reads, *operations[number].makes):
            left[buffer] -= 1
            if left[buffer] == 0:
                in_use[buffer.part] -= buffer.size_bytes
        order.done(number)
        ready += order.get_ready()
    return at_peak
