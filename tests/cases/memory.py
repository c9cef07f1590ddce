"""The same results in more memory than before, or in more than there is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Graph, normal

ROOM = 96 * 2**20
"""Bytes that the small machine has left for the model's intermediate values."""


def wide(*, room: int | None = None) -> Any:
    """A wide value for each row of the batch, several of them alive at once.

    Args:
        room: bytes that this process may still take, as on a smaller machine.
    """
    g = Graph()
    x = g.input("x", ["n", 1])
    y = g.node("Mul", x, g.weight(np.linspace(0.5, 1.5, 4096, dtype=np.float32).reshape(1, -1)))
    y = g.node("Mul", g.node("Sigmoid", y), g.node("Add", y, g.node("Relu", y)))
    g.output(g.node("ReduceMean", y, axes=[1], keepdims=0), shape=["n"])
    if room is not None:
        import resource  # noqa: PLC0415 - not on Windows

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
    return g.model()


def growing() -> Any:
    """Intermediate values, each larger than the one before, which is free by then.

    All beyond the 32 MiB up to which the C library may keep what is freed.
    """
    g = Graph()
    x = g.input("x", [1, 64])
    for rows in (140_000, 290_000, 600_000):
        large = g.node("Expand", x, g.weight(np.array([rows, 64])))
        small = g.node("ReduceMean", large, axes=[0], keepdims=1)
        x = g.node("Tanh", small)
    g.output(x)
    return g.model()


def tied(*, copies: bool) -> Any:
    """A dozen products with one weight, or with a copy of it each."""
    g = Graph()
    width = 1024
    x = g.input("x", [4, width])
    values = (g.rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
    weight = g.weight(values)
    for i in range(12):
        x = g.node("Tanh", g.node("MatMul", x, g.weight(values) if copies and i else weight))
    g.output(x)
    return g.model()


def keeping(*, kept: int) -> Any:
    """A product by torch, and buffers of four MiB that nothing reads."""
    import torch  # noqa: PLC0415 - heavy

    torch.manual_seed(0)
    made = torch.nn.Linear(256, 256)
    for i in range(kept):
        made.register_buffer(f"cache{i}", torch.ones(2**20), persistent=False)
    return made.eval()


def rows(batch: int, rng: Any) -> Any:
    """A matrix."""
    return [rng.standard_normal((batch, 256), dtype=np.float32)]


def column(batch: int, rng: Any) -> Any:
    """One number for each row."""
    return {"x": rng.standard_normal((batch, 1), dtype=np.float32)}


def arena(*, used: bool) -> dict[str, dict[str, Any]]:
    """Whether freed memory is kept for later; nothing is planned ahead either way."""
    return {"onnxruntime": {"enable_cpu_mem_arena": used, "enable_mem_pattern": False}}


ROW = {"x": normal(1, 64)}
FOUR = {"x": normal(4, 1024)}

CASES = (
    Case(
        name="batch",
        batch=4096,
        good=Build(model=wide, inputs=column),
        bad=Build(model=partial(wide, room=ROOM), inputs=column),
    ),
    Case(
        name="arena",
        good=Build(model=growing, inputs=ROW, options=arena(used=False)),
        bad=Build(model=growing, inputs=ROW, options=arena(used=True)),
    ),
    Case(
        name="tied",
        batch=4,
        good=Build(model=partial(tied, copies=False), inputs=FOUR),
        bad=Build(model=partial(tied, copies=True), inputs=FOUR),
    ),
    Case(
        name="kept",
        runtime="torch",
        batch=32,
        good=Build(model=partial(keeping, kept=0), inputs=rows),
        bad=Build(model=partial(keeping, kept=10), inputs=rows),
    ),
)
