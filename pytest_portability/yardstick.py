"""Fixed reference work per target, done by a library independent of the runtime under test.

It tells a slow machine from a slow build. On a CPU it is a GEMM by NumPy on one thread, whatever
the model uses: a two-thread BLAS spins between calls, which made its own time vary by 67-109 % and
slowed the model beside it 1.6-2.3 times. A copy yardstick tracks neighbours four times worse than
the GEMM does. On an accelerator it is a GEMM of bounded size plus a chain of tiny kernels, because
the same card behind another host CPU is the same target and launch latency is part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ENVIRONMENT: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "BLIS_NUM_THREADS": "1"}
"""Variables the child's server needs so that NumPy's BLAS stays on one thread. MKL's is left
alone: torch shares it."""

CPU_SIZE = 192
"""Three float32 matrices of 192 × 192 take 432 kB: inside a level-2 cache, so that the yardstick
neither waits for memory nor clears a large cache under the model's feet."""

DEVICE_SIZE = 2048
TINY_KERNELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """One unit of fixed work.

    Attributes:
        id: the work and the library that does it; figures of different ids cannot be compared.
        run: does the given number of units and returns when they are done.
    """

    id: str
    run: Callable[[int], None]


def on_cpu() -> Yardstick:
    """A float32 GEMM by NumPy; its library must already be limited to one thread."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((CPU_SIZE, CPU_SIZE), dtype=np.float32)
    # An orthogonal factor keeps the chained products from overflowing or becoming denormal.
    b = np.linalg.qr(rng.standard_normal((CPU_SIZE, CPU_SIZE)))[0].astype(np.float32)
    out = np.empty_like(a)

    def run(units: int) -> None:
        for _ in range(units):
            np.matmul(a, b, out=out)

    return Yardstick(id=f"gemm-{CPU_SIZE}-float32 numpy {np.__version__}", run=run)


def on_device(handle: str) -> Yardstick:
    """A float32 GEMM and a chain of tiny kernels by torch on ``handle``, such as ``cuda:0``."""
    import torch  # noqa: PLC0415 - heavy, and only where an accelerator is measured

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(DEVICE_SIZE, DEVICE_SIZE, generator=generator).to(handle)
    b = a / math.sqrt(DEVICE_SIZE)
    tiny = torch.ones(16, device=handle)

    def run(units: int) -> None:
        with torch.inference_mode():
            for _ in range(units):
                torch.mm(a, b)
                x = tiny
                for _ in range(TINY_KERNELS):
                    x = x * 1.0
        _synchronize(torch, handle)

    name = f"gemm-{DEVICE_SIZE}+{TINY_KERNELS}-float32 torch {torch.__version__}"
    return Yardstick(id=name, run=run)


def _synchronize(torch: Any, handle: str) -> None:
    if not handle.startswith("cpu"):
        torch.accelerator.synchronize()
