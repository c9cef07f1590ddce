"""What really ran: kernels after fusion, who ran each, in which precision, how often."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Kernel:
    """The identity of a kernel, with running indices and hashes already removed.

    Attributes:
        provider: who ran it, such as ``CPUExecutionProvider``, ``aten:cpu``, ``inductor``,
            ``ov:CPU``.
        op: name after fusion, such as ``FusedMatMul``.
        role: ``compute``, ``move`` (copies, reorders, casts) or ``layout`` (reshape, transpose,
            gather).
        precision: ``fp32``, ``bf16``, ``fp16``, ``int8``, …; empty where the runtime does not say.
        implementation: such as ``brgemm_avx512_bf16``; empty where the runtime does not say.
        absorbs: sorted source op types fused into it; empty where the runtime does not say.
    """

    provider: str
    op: str
    role: str = "compute"
    precision: str = ""
    implementation: str = ""
    absorbs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """How often a kernel is launched per inference and its share (0–1) of the inference's time.

    ``share`` is None where the runtime gives no time that can be trusted (an asynchronous
    provider reports launch time).
    """

    kernel: Kernel
    launches: int
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPath:
    """All kernels of one inference.

    Attributes:
        evidence: ``executed``, ``planned`` or ``none``.
        source: op types of the graph before fusion → count; empty where the runtime does not say.
        busy_s: seconds that an accelerator works on one inference, by its kernels' own times; None
            on a CPU, whose busy time is measured with the wall time, and where nothing tells.
        caveats: what this path cannot tell, one sentence each.
    """

    runtime: str
    uses: tuple[KernelUse, ...] = ()
    evidence: str = "executed"
    source: Mapping[str, int] = field(default_factory=dict)
    busy_s: float | None = None
    caveats: tuple[str, ...] = ()


_ONNX_MOVES = frozenset(
    {
        *("MemcpyToHost", "MemcpyFromHost", "ReorderInput", "ReorderOutput", "Cast"),
        *("QuantizeLinear", "DequantizeLinear"),
    }
)
_ONNX_LAYOUT = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Slice", "Split"),
        *("Gather", "Shape", "Size", "Expand", "Tile", "Identity", "Pad", "Constant"),
        "ConstantOfShape",
    }
)


def onnx_role(op: str) -> str:
    """``move``, ``layout`` or ``compute`` of an op type of ONNX or ONNX Runtime."""
    return "move" if op in _ONNX_MOVES else "layout" if op in _ONNX_LAYOUT else "compute"


_CONTRACTION = re.compile(
    r"conv|gemm|matmul|mm\b|linear|attention|attn|lstm|gru|rnn|einsum|innerproduct|"
    r"fullyconnected|(?:^|_)dot(?:_|$)",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"qlinear|integer|qgemm|qattention", re.IGNORECASE)
_PRECISIONS = {"fp32", "tf32", "bf16", "fp16", "int8"}


def effective_precision(path: KernelPath) -> str:
    """The precision that most of the compute work runs in; empty where the path cannot tell.

    Only matrix products, convolutions and the like are asked if there are any: they are the
    arithmetic that a precision buys, while autocast and quantisation rightly leave the many small
    operations between them in fp32. Weighted by share of time, by launches where one is unknown.
    A mixture is the precision of its majority. Integer index arithmetic has no say; if more than
    half of the weight has an unknown precision the answer is empty.
    """
    compute = [use for use in path.uses if use.kernel.role == "compute" and use.launches]
    uses = [use for use in compute if _contracts(use.kernel)] or compute
    timed = all(use.share is not None for use in uses) and sum(u.share or 0.0 for u in uses) > 0
    weights: dict[str, float] = {}
    for use in uses:
        name = precision_of(use.kernel)
        if name or not use.kernel.precision:
            weight = (use.share or 0.0) if timed else float(use.launches)
            weights[name] = weights.get(name, 0.0) + weight
    if not weights or weights.get("", 0.0) > sum(weights.values()) / 2:
        return ""
    return max(sorted(set(weights) - {""}), key=lambda name: weights[name], default="")


def _contracts(kernel: Kernel) -> bool:
    if not kernel.precision and not kernel.absorbs:
        return True  # a compiled subgraph: what is in it may well be most of the work
    return any(_CONTRACTION.search(op) for op in (kernel.op, *kernel.absorbs))


def precision_of(kernel: Kernel) -> str:
    """The precision of one kernel's arithmetic; empty where it cannot tell, or has none."""
    if _INTEGER.search(kernel.op):
        return "int8"  # an integer product may report the type of its rescaled output
    name = "int8" if kernel.precision == "uint8" else kernel.precision
    return name if name in _PRECISIONS else ""
