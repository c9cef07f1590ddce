"""Arithmetic that became coarser: half precision, bfloat16, TF32, bad quantisation parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Array, Graph, normal
from onnx import TensorProto

WIDTH = 256


def squares(*, half: bool) -> Any:
    """A norm whose squares leave float16's range where a row is large."""
    import torch  # noqa: PLC0415 - heavy

    class Squares(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(normal(WIDTH, WIDTH, seed=0) / 16))

        def forward(self, x: Any) -> Any:
            weight = self.weight
            if half:
                x, weight = x.half(), weight.half()
            h = x @ weight
            square = h * h
            mean = square.mean(-1, keepdim=True)
            return (square / mean - h * mean.rsqrt()).to(self.weight.dtype)

    return Squares().eval()


def units(*, half: bool) -> Any:
    """Rows scaled to length 1; float16 has no 1e-8 to keep the empty one from 0 ÷ 0."""
    import torch  # noqa: PLC0415 - heavy

    class Units(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.linear.weight.data = torch.from_numpy(normal(WIDTH, WIDTH, seed=0) / 16)

        def forward(self, x: Any) -> Any:
            h = self.linear(x)
            y = h.half() if half else h
            return (y / (y.norm(dim=-1, keepdim=True) + 1e-8)).to(h.dtype)

    return Units().eval()


def products(*, bits: int = 0, autocast: bool = False) -> Any:
    """Four products with tanh, whose float32 operands may be rounded as an accelerator does.

    In float64, which is the reference's, nothing is rounded: the fault is of the build.
    """
    import torch  # noqa: PLC0415 - heavy

    def rounded(x: Any) -> Any:
        if not bits or x.dtype != torch.float32:
            return x
        fraction, exponent = torch.frexp(x)
        return torch.ldexp(torch.round(fraction * 2.0**bits) / 2.0**bits, exponent)

    class Products(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            made = [torch.from_numpy(normal(WIDTH, WIDTH, seed=i) / 16) for i in range(4)]
            self.weights = torch.nn.ParameterList(made)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                for weight in self.weights:
                    x = torch.tanh(rounded(x) @ rounded(weight)).to(weight.dtype)
            return x

    return Products().eval()


def dense() -> Any:
    """Six dense layers."""
    g = Graph()
    x = g.input("x", [32, 512])
    for _ in range(6):
        x = g.node("Relu", g.linear(x, 512, 512))
    g.output(x)
    return g.model()


def convolutions(*, half: bool) -> Any:
    """Four of them, with float16 weights between casts or not; the same draws."""
    g = Graph()
    x = g.input("x", [32, 8, 14, 14])
    if half:
        x = g.node("Cast", x, to=TensorProto.FLOAT16)
    for i in range(4):
        weight = g.drawn(
            8, 8, 1, 1, name=f"conv{i}.weight", dtype=np.float16 if half else np.float32
        )
        x = g.node("Relu", g.node("Conv", x, weight, kernel_shape=[1, 1]))
        x = g.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    g.output(g.node("Cast", x, to=TensorProto.FLOAT) if half else x)
    return g.model()


def quantised(*, activation: float | None = 0.035, zero: int = 128, weight: float = 0.002) -> Any:
    """A product of int8 weights, between quantised activations or not.

    Args:
        activation: scale of the activations; None leaves them in float32.
        zero: their zero point.
        weight: scale that the weights are read with; they are stored for 0.002.
    """
    g = Graph()

    def pair(x: str, scale: float) -> str:
        how = g.weight(np.float32(scale)), g.weight(np.uint8(zero))
        return g.node("DequantizeLinear", g.node("QuantizeLinear", x, *how), *how)

    x = g.input("x", [64, WIDTH])
    values = np.clip(np.round(normal(WIDTH, WIDTH, seed=0) / 16 / 0.002), -127, 127)
    how = g.weight(np.float32(weight)), g.weight(np.int8(0))
    w = g.node("DequantizeLinear", g.weight(values.astype(np.int8), "fc.weight"), *how)
    if activation is None:
        y = g.node("MatMul", x, w)
    else:
        y = pair(g.node("MatMul", pair(x, activation), w), activation)
    g.output(y)
    return g.model()


def chain() -> Any:
    """A bfloat16 chain: compiled it keeps float32 between the steps that eager rounds."""
    import torch  # noqa: PLC0415 - heavy

    class Chain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            values = torch.from_numpy(normal(WIDTH, seed=0)).bfloat16()
            self.weight = torch.nn.Parameter(values)

        def forward(self, x: Any) -> Any:
            x = x.to(self.weight.dtype)
            for _ in range(6):
                x = torch.nn.functional.silu(x * self.weight) + x * 0.9
            return x

    return Chain().eval()


def with_row(index: int, scale: float) -> list[Array]:
    """64 rows, one of which is scaled."""
    values = normal(64, WIDTH)
    values[index] *= np.float32(scale)
    return [values]


TORCH_ROWS = [normal(64, WIDTH)]
ROWS = {"x": normal(64, WIDTH)}
WIDE_ROWS = {"x": normal(32, 512)}
PICTURES = {"x": normal(32, 8, 14, 14)}

TORCH = (
    Case(
        name="overflow",
        runtime="torch",
        batch=64,
        good=Build(model=partial(squares, half=False), inputs=with_row(7, 400)),
        bad=Build(model=partial(squares, half=True), inputs=with_row(7, 400)),
    ),
    Case(
        name="vanished_epsilon",
        runtime="torch",
        batch=64,
        good=Build(model=partial(units, half=False), inputs=with_row(7, 0)),
        bad=Build(model=partial(units, half=True), inputs=with_row(7, 0)),
    ),
    Case(
        name="tf32_like",
        runtime="torch",
        batch=64,
        good=Build(model=products, inputs=TORCH_ROWS),
        bad=Build(model=partial(products, bits=11), inputs=TORCH_ROWS),
    ),
    Case(
        name="autocast",
        runtime="torch",
        batch=64,
        good=Build(model=products, inputs=TORCH_ROWS),
        bad=Build(model=partial(products, autocast=True), inputs=TORCH_ROWS),
    ),
    Case(
        name="compiled_chain",
        runtime="torch.compile",
        batch=64,
        good=Build(model=chain, inputs=TORCH_ROWS),
        bad=Build(model=chain, inputs=TORCH_ROWS),
    ),
)

OPENVINO = (
    Case(
        name="silent_bf16",
        runtime="openvino",
        batch=32,
        good=Build(
            model=dense,
            inputs=WIDE_ROWS,
            options={"openvino": {"INFERENCE_PRECISION_HINT": "f32"}},
        ),
        bad=Build(model=dense, inputs=WIDE_ROWS),
    ),
    Case(
        name="accuracy_mode_lost",
        runtime="openvino",
        batch=32,
        good=Build(
            model=dense,
            inputs=WIDE_ROWS,
            options={"openvino": {"EXECUTION_MODE_HINT": "ACCURACY"}},
        ),
        bad=Build(model=dense, inputs=WIDE_ROWS),
    ),
)

ONNX = (
    Case(
        name="half_weights",
        batch=32,
        good=Build(model=partial(convolutions, half=False), inputs=PICTURES),
        bad=Build(model=partial(convolutions, half=True), inputs=PICTURES),
    ),
    Case(
        name="small_scale",
        batch=64,
        good=Build(model=quantised, inputs=ROWS),
        bad=Build(model=partial(quantised, activation=0.008), inputs=ROWS),
    ),
    Case(
        name="zero_point",
        batch=64,
        good=Build(model=quantised, inputs=ROWS),
        bad=Build(model=partial(quantised, zero=0), inputs=ROWS),
    ),
    Case(
        name="weight_scale",
        batch=64,
        good=Build(model=quantised, inputs=ROWS),
        bad=Build(model=partial(quantised, weight=0.0023), inputs=ROWS),
    ),
    Case(
        name="activations_quantised",
        batch=64,
        good=Build(model=partial(quantised, activation=None), inputs=ROWS),
        bad=Build(model=partial(quantised, activation=0.004), inputs=ROWS),
    ),
)

CASES = (*TORCH, *OPENVINO, *ONNX)
