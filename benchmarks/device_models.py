"""The models that ``device_check.py`` measures: made with fixed seeds, so nothing is downloaded.

A transformer of MiniLM's shape and a small residual convolutional net, as torch modules and, where
``onnx`` is installed, the transformer as a graph. Their faults are options of theirs: the weights
and, but for rounding, the outputs stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the models are.

    Attributes:
        width: of the transformer's states.
        words: in the vocabulary.
        image: side of the square input of the convolutions.
        channels: of the first stage; the second has twice, the third four times as many.
        wide: float32 values that ``Wide`` holds per sample at its peak, twice.
    """

    layers: int
    width: int
    heads: int
    tokens: int
    words: int
    image: int
    channels: int
    wide: int


SIZES = {
    "full": Size(
        layers=6,
        width=384,
        heads=12,
        tokens=128,
        words=30522,
        image=128,
        channels=64,
        wide=2**21,
    ),
    "tiny": Size(
        layers=1,
        width=32,
        heads=2,
        tokens=8,
        words=64,
        image=16,
        channels=4,
        wide=2**8,
    ),
}


class Layer(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Attention and feed-forward, each with its residual and norm, as in BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = self.norms[0](x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class MiniLm(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Token ids, int64 [batch, tokens] → mean-pooled states, float32 [batch, width].

    Args:
        size: how large.
        layers: how many, the size's own by default.
        broken: whether the graph breaks after each layer when it is compiled.
    """

    def __init__(self, size: Size, layers: int = 0, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Parameter(torch.randn(size.tokens, size.width) * 0.02)
        self.norm = nn.LayerNorm(size.width)
        self.layers = nn.ModuleList(
            Layer(size.width, size.heads) for _ in range(layers or size.layers)
        )

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.words(ids) + self.places)
        for layer in self.layers:
            x = layer(x)
            if self.broken:
                torch._dynamo.graph_break()  # noqa: SLF001 - torch has no other name for it
        return x.mean(1)


class Block(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Two convolutions and a shortcut, as in ResNet."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(made) for _ in range(2))
        self.shortcut = nn.Conv2d(given, made, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ConvNet(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Images, float32 [batch, 3, side, side] → float32 [batch, 4 · channels].

    Args:
        size: how large.
        elsewhere: whether the activations of each block go through the CPU.
    """

    def __init__(self, size: Size, *, elsewhere: bool = False) -> None:
        super().__init__()
        self.elsewhere = elsewhere
        some = size.channels
        self.stem = nn.Conv2d(3, some, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(some)
        stages = ((some, some, 1), (some, 2 * some, 2), (2 * some, 4 * some, 2))
        blocks = [
            Block(given if i == 0 else made, made, stride if i == 0 else 1)
            for given, made, stride in stages
            for i in range(2)
        ]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(image))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
            if self.elsewhere:
                x = functional.relu(x.cpu()).to(image.device)  # it was rectified already
        return x.mean((2, 3))


class Wide(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Little work and much memory: float32 [batch, 64] → [batch, 64].

    Args:
        size: how large.
        device: whose memory to cap for this process; empty for none.
        fits: samples that are still to fit below the cap.
    """

    def __init__(self, size: Size, *, device: str = "", fits: int = 0) -> None:
        super().__init__()
        self.times = size.wide // 64
        self.mix = nn.Linear(64, 64)
        if device:
            module = getattr(torch, device.partition(":")[0])
            total = module.get_device_properties(device).total_memory
            # Two such tensors per sample are alive at once; yardstick and workspace take 70 MB.
            cap = 2 * 4 * size.wide * (fits + 0.5) + 2**27
            module.set_per_process_memory_fraction(cap / total, device)

    def forward(self, x: Any) -> Any:
        x = self.mix(x)
        many = x.repeat(1, self.times)
        return (many + 1.0).view(len(x), self.times, 64).mean(1)


def onnx_minilm(size: Size, *, elsewhere: bool = False) -> Any:
    """The transformer's layers as a graph: float32 [batch, tokens, width] → the same.

    Args:
        size: how large; two layers are enough to tell where nodes run.
        elsewhere: whether a pair of nodes that hardly a provider but the CPU's has, and that undo
            each other, stands between layers.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    tensors: list[Any] = []
    width, heads, tokens = size.width, size.heads, size.tokens

    def tensor(value: Any) -> str:
        tensors.append(numpy_helper.from_array(np.asarray(value), f"t{len(tensors)}"))
        return str(tensors[-1].name)

    def node(op: str, *given: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, list(given), [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    def linear(x: str, rows: int, columns: int) -> str:
        matrix = rng.standard_normal((rows, columns), dtype=np.float32) * rows**-0.5
        bias = rng.standard_normal(columns, dtype=np.float32) * 0.02
        return node("Add", node("MatMul", x, tensor(matrix.astype(np.float32))), tensor(bias))

    def norm(x: str) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return node("LayerNormalization", x, tensor(ones), tensor(zeros), axis=-1)

    def headed(x: str, order: list[int]) -> str:
        shape = tensor(np.array([0, tokens, heads, width // heads], np.int64))
        return node("Transpose", node("Reshape", x, shape), perm=order)

    scale = tensor(np.float32((width // heads) ** -0.5))
    flat = tensor(np.array([0, tokens, width], np.int64))
    x = "x"
    for _ in range(min(2, size.layers)):
        q, v = (headed(linear(x, width, width), [0, 2, 1, 3]) for _ in range(2))
        k = headed(linear(x, width, width), [0, 2, 3, 1])
        weights = node("Softmax", node("Mul", node("MatMul", q, k), scale), axis=-1)
        seen = node("Transpose", node("MatMul", weights, v), perm=[0, 2, 1, 3])
        x = norm(node("Add", x, linear(node("Reshape", seen, flat), width, width)))
        up = node("Gelu", linear(x, width, 4 * width))
        x = norm(node("Add", x, linear(up, 4 * width, width)))
        if elsewhere:
            x = node("Tan", node("Atan", x))
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", tokens, width])
        for name in "xy"
    )
    graph = helper.make_graph(nodes, "minilm", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def seeded(kind: type[Any], *args: Any, **kwargs: Any) -> Any:
    """A module in eval mode, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(*args, **kwargs).eval()
