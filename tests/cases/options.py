"""An option, a variable or a way of writing that makes the same weights slower.

The builds of ``CAPPED`` differ in the environment of the second run, which is of a whole run: they
take the place of the others where ``CASE_SET`` says so.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Graph, normal

CAP = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""What keeps torch and oneDNN from the newer vector instructions."""


def gelu(g: Graph, x: str, *, split: bool = False) -> str:
    """Written out: x·(1 + erf(x/√2))·½, which runtimes know, or as a sum of two halves."""
    half = g.weight(np.float32(0.5))
    if split:
        erf = g.node("Erf", g.node("Mul", x, g.weight(np.float32(0.5**0.5))))
        halved = g.node("Mul", x, half)
        return g.node("Add", halved, g.node("Mul", halved, erf))
    erf = g.node("Erf", g.node("Div", x, g.weight(np.float32(2**0.5))))
    return g.node("Mul", g.node("Mul", x, g.node("Add", erf, g.weight(np.float32(1)))), half)


def activations(*, split: bool = False) -> Any:
    """Narrow layers with a wide activation between them, which takes most of the time."""
    g = Graph()
    x = g.input("x", [128, 8])
    for _ in range(4):
        x = g.linear(gelu(g, g.linear(x, 8, 1024), split=split), 1024, 8)
    g.output(x)
    return g.model()


def products(*, layers: int = 4, rows: int = 128, width: int = 512) -> Any:
    """Products with an activation between them."""
    g = Graph()
    x = g.input("x", [rows, width])
    for _ in range(layers):
        x = g.node("Relu", g.linear(x, width, width))
    g.output(x)
    return g.model()


def channels(*, last: bool) -> Any:
    """Convolutions; with channels last, a pair of transposes around each that cannot cancel."""
    g = Graph()
    wide, high = 16, 48
    x = g.input("x", [1, wide, high, high])
    if last:
        x = g.node("Transpose", x, perm=[0, 2, 3, 1])
    for _ in range(5):
        kernel = g.drawn(wide, wide, 1, 1)
        bias = (0.1 * g.rng.standard_normal(wide)).astype(np.float32)
        if not last:
            x = g.node("Conv", x, kernel, kernel_shape=[1, 1])
            x = g.node("Relu", g.node("Add", x, g.weight(bias.reshape(1, wide, 1, 1))))
            continue
        x = g.node("Conv", g.node("Transpose", x, perm=[0, 3, 1, 2]), kernel, kernel_shape=[1, 1])
        x = g.node("Add", g.node("Transpose", x, perm=[0, 2, 3, 1]), g.weight(bias))
        # A transpose is not pushed through a reshape that merges what it moved.
        x = g.node("Reshape", x, g.weight(np.array([1, high * high, wide])))
        x = g.node("Reshape", g.node("Relu", x), g.weight(np.array([1, high, high, wide])))
    g.output(g.node("Transpose", x, perm=[0, 3, 1, 2]) if last else x)
    return g.model()


def step(x: Any) -> Any:
    """One of the elementwise steps."""
    return (x * 1.01 + 0.1).clamp(-3.0, 3.0)


def pointwise(*, reads: bool = False, calls: bool = False) -> Any:
    """Elementwise steps that a compiler fuses into one kernel.

    Args:
        reads: a value after every step, inside the loop, which then is not compiled at all.
        calls: each step is a function of its own, which is compiled even then.
    """
    import torch  # noqa: PLC0415 - heavy

    class Pointwise(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            for _ in range(20):
                x = step(x) if calls else (x * 1.01 + 0.1).clamp(-3.0, 3.0)
                if reads and float(x[0, 0]) > 1e30:
                    x = x * 0.5
            return x

    return Pointwise().eval()


def attention() -> Any:
    """Causal attention by torch's own function, whatever it picks."""
    import torch  # noqa: PLC0415 - heavy

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Attention().eval()


def steps(*, copied: bool) -> Any:
    """Activations on a picture, in place in memory or with its axes swapped and back each time."""
    import torch  # noqa: PLC0415 - heavy

    class Steps(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            for _ in range(6):
                if copied:
                    x = x.transpose(-1, -2).contiguous().relu().transpose(-1, -2).contiguous()
                else:
                    x = x.relu()
                x = x - 0.01
            return x

    return Steps().eval()


def convolutions() -> Any:
    """Convolutions and activations, whose kernels exist for every instruction set."""
    import torch  # noqa: PLC0415 - heavy

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.GELU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.Softmax(1),
    ).eval()


def heads(batch: int, rng: Any) -> Any:
    """Queries, keys and values."""
    return [rng.standard_normal((batch, 8, 256, 64), dtype=np.float32) for _ in range(3)]


def rows(batch: int, rng: Any) -> Any:
    """A small matrix."""
    return [rng.standard_normal((batch, 64), dtype=np.float32)]


def pictures(batch: int, rng: Any) -> Any:
    """Sixteen channels of 32 × 32."""
    return [rng.standard_normal((batch, 16, 32, 32), dtype=np.float32)]


def planes(batch: int, rng: Any) -> Any:
    """Eight channels of 256 × 256."""
    return [rng.standard_normal((batch, 8, 256, 256), dtype=np.float32)]


NARROW = {"x": normal(128, 8)}
WIDE = {"x": normal(128, 512)}
PICTURE = {"x": normal(1, 16, 48, 48)}


def onnxruntime(**options: Any) -> dict[str, dict[str, Any]]:
    """These options of ONNX Runtime."""
    return {"onnxruntime": options}


SLOWER = (
    Case(
        name="level",
        batch=128,
        good=Build(model=activations, inputs=NARROW),
        bad=Build(
            model=activations,
            inputs=NARROW,
            options=onnxruntime(graph_optimization_level="disable_all"),
        ),
    ),
    Case(
        name="optimizers",
        batch=128,
        good=Build(model=activations, inputs=NARROW),
        bad=Build(
            model=activations,
            inputs=NARROW,
            options=onnxruntime(disabled_optimizers=["GeluFusionL1", "GeluFusionL2"]),
        ),
    ),
    Case(
        name="threads",
        batch=128,
        good=Build(model=products, inputs=WIDE, options=onnxruntime(intra_op_num_threads=2)),
        bad=Build(model=products, inputs=WIDE, options=onnxruntime(intra_op_num_threads=1)),
    ),
    Case(
        name="gelu",
        batch=128,
        good=Build(model=activations, inputs=NARROW),
        bad=Build(model=partial(activations, split=True), inputs=NARROW),
    ),
    Case(
        name="transposes",
        good=Build(model=partial(channels, last=False), inputs=PICTURE),
        bad=Build(model=partial(channels, last=True), inputs=PICTURE),
    ),
    Case(
        name="copies",
        runtime="torch",
        good=Build(model=partial(steps, copied=False), inputs=planes),
        bad=Build(model=partial(steps, copied=True), inputs=planes),
    ),
    Case(
        name="sdpa",
        runtime="torch",
        good=Build(model=attention, inputs=heads),
        bad=Build(model=attention, inputs=heads, options={"torch": {"sdpa": "math"}}),
    ),
    Case(
        name="declined",
        runtime="torch.compile",
        batch=16,
        good=Build(model=pointwise, inputs=rows),
        bad=Build(model=partial(pointwise, reads=True), inputs=rows),
    ),
    Case(
        name="breaks",
        runtime="torch.compile",
        batch=16,
        good=Build(model=partial(pointwise, calls=True), inputs=rows),
        bad=Build(model=partial(pointwise, reads=True, calls=True), inputs=rows),
    ),
    Case(
        name="backend",
        runtime="torch.compile",
        batch=16,
        good=Build(model=pointwise, inputs=rows),
        bad=Build(model=pointwise, inputs=rows, options={"torch.compile": {"backend": "eager"}}),
    ),
)

CAPPED = (
    Case(
        name="capped",
        runtime="torch",
        batch=8,
        good=Build(model=convolutions, inputs=pictures),
        bad=Build(model=convolutions, inputs=pictures),
    ),
)

CASES = CAPPED if os.environ.get("CASE_SET") == "capped" else SLOWER
