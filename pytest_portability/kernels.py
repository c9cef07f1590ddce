"""What really ran: kernels after fusion, who ran each, in which precision, how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Kernel:
    """The identity of a kernel, with running indices and hashes already removed.

    Attributes:
        provider: who ran it, such as ``CPUExecutionProvider``, ``aten:cpu``, ``inductor``, ``ov:CPU``.
        op: name after fusion, such as ``FusedMatMul``.
        role: ``compute``, ``move`` (copies, reorders, casts) or ``layout`` (reshape, transpose, gather).
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
        caveats: what this path cannot tell, one sentence each.
    """

    runtime: str
    uses: tuple[KernelUse, ...] = ()
    evidence: str = "executed"
    source: Mapping[str, int] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
