"""Records, measurements and kernel paths made up for tests; everything random is seeded by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_portability.kernels import Kernel, KernelPath, KernelUse
from pytest_portability.models import TensorSpec
from pytest_portability.parity import Parity
from pytest_portability.records import Axis, Figures, Key, ModelVersion, Record
from pytest_portability.runtimes import Observed
from pytest_portability.samples import Latency, Measurement, Memory, Repeat, Window

EP = "CPUExecutionProvider"

KEY = Key(model="m", target="cpu-x-2c", runtime="onnxruntime.cpu", precision="native", batch=8)

FIGURES = Figures(
    throughput=800.0,
    unit="samples",
    items=8.0,
    repeats=4,
    wall=Axis(seconds=0.010, ratio=10.0, spread_rel=0.008),
    busy=Axis(seconds=0.010, ratio=10.0, spread_rel=0.008),
    burst_throughput=850.0,
    latency_p50_s=0.010,
    latency_p90_s=0.011,
    latency_p99_s=0.012,
    yardstick="gemm-numpy-256",
    yardstick_s=0.001,
    build_s=0.2,
    first_call_s=0.02,
    memory_device_bytes=None,
    memory_arena_bytes=64 * 2**20,
    memory_process_bytes=200 * 2**20,
    batch_effective=8,
)

PARITY = Parity(
    reference="onnxruntime cpu fp32 unoptimised",
    error_rel=1e-7,
    floors_rel={"y": 1e-8},
    inputs="i",
    input_specs=(TensorSpec(name="x", dtype="float32", shape=(8, 16)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(8, 2)),),
)

MODEL = ModelVersion(
    kind="onnx",
    framework="pytorch 2.13.0",
    opset={"": 20},
    weights="w1",
    tensors={"fc1.weight": "a", "fc2.weight": "b"},
    graph="g1",
    parameters=100,
)

RECORD = Record(
    key=KEY,
    model=MODEL,
    vendor="cpu",
    arch="x86_64",
    product="X",
    platform="cpu",
    effective="fp32",
    toolchain={"onnxruntime": "1.31.1"},
    options={"graph_optimization_level": "ENABLE_ALL"},
    providers={EP: 48},
    threads=1,
    graph_breaks=None,
    compiled=None,
    figures=FIGURES,
    path=KernelPath(runtime="onnxruntime.cpu"),
    parity=PARITY,
    commit="0123456789abcdef",
    measured="2026-03-01T12:00:00Z",
)


def use(
    op: str, launches: int = 1, share: float | None = None, provider: str = EP, **fields: Any
) -> KernelUse:
    """One use of a kernel; ``fields`` are those of ``Kernel``."""
    return KernelUse(
        kernel=Kernel(provider=provider, op=op, **fields), launches=launches, share=share
    )


def path(*uses: KernelUse, source: Mapping[str, int] | None = None, **fields: Any) -> KernelPath:
    """A kernel path of ONNX Runtime."""
    fields.setdefault("runtime", "onnxruntime.cpu")
    return KernelPath(uses=uses, source=source or {}, **fields)


def figures(
    busy: Sequence[float] | None,
    wall: Sequence[float],
    *,
    yardstick_s: float = 0.001,
    **fields: Any,
) -> Figures:
    """Figures of repeats given by their ratios to the yardstick."""
    return replace(
        FIGURES,
        repeats=len(wall),
        wall=_axis(wall, yardstick_s),
        busy=None if busy is None else _axis(busy, yardstick_s),
        throughput=8 / _axis(wall, yardstick_s).seconds,
        yardstick_s=yardstick_s,
        **fields,
    )


def _axis(ratios: Sequence[float], yardstick_s: float) -> Axis:
    logs = np.log(np.asarray(ratios, dtype=float))
    spread = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    seconds = float(np.median(ratios)) * yardstick_s
    return Axis(seconds=seconds, ratio=math.exp(float(logs.mean())), spread_rel=spread)


def steady(level: float, repeats: int = 4, spread: float = 0.008) -> list[float]:
    """Ratios about a level whose standard deviation of the logarithms is ``spread``."""
    base = np.linspace(-1, 1, repeats) if repeats > 1 else np.zeros(1)
    scale = float(np.std(base, ddof=1)) if repeats > 1 else 1.0
    return [float(level * math.exp(spread * step / scale)) for step in base]


def record(**fields: Any) -> Record:
    """``RECORD`` with some fields changed; ``figures=`` and ``path=`` are the usual ones."""
    return replace(RECORD, **fields)


def slower(factor: float = 1.3, wall: float | None = None, **fields: Any) -> Record:
    """A record whose busy and wall times are ``factor`` times the baseline's."""
    times = figures(steady(10 * factor), steady(10 * (wall or factor)))
    return record(figures=times, **fields)


def measurement(
    *,
    contended: float = 0.0,
    fading: float = 0.0,
    repeats: int = 2,
    windows: int = 12,
    observed: Observed | None = None,
) -> Measurement:
    """A measurement of which only the witnesses matter: contention and fading."""
    some = tuple(
        Window(
            batches=4,
            wall_s=0.04 * (1 + fading if 3 * n >= 2 * windows else 1.0),
            busy_s=0.04,
            yardstick_wall_s=0.001,
            yardstick_busy_s=0.001 * (1 - contended),
        )
        for n in range(windows)
    )
    repeat = Repeat(
        windows=some,
        straight=(),
        build_s=0.1,
        first_call_s=0.1,
        warmup_s=0.1,
        steady=True,
        latency=Latency(p50_s=0.01, p90_s=0.01, p99_s=0.01, calls=10),
        memory=Memory(),
        yardstick="gemm-numpy-256",
        observed=observed or Observed(asked_provider=EP, providers={EP: 48}),
    )
    return Measurement(repeats=(repeat,) * repeats, batch=8, batch_effective=8, items=8.0)
