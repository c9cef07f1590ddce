"""Tiny seeded torch modules for the tests; every function gives the same weights each time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pytest_portability.models import Arrays, Model

WIDTH = 32


def seeded(module_type: type[Any], *args: Any, **kwargs: Any) -> Any:
    """A module of that type in eval mode, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return module_type(*args, **kwargs).eval()


def model(module: Any) -> Model:
    """The module as the runtimes take it."""
    return Model(kind="torch", value=module)


def rows(batch: int, *shape: int, name: str = "0") -> Arrays:
    """Seeded float32 values of shape [batch, *shape] under one name."""
    rng = np.random.default_rng(batch)
    return {name: rng.standard_normal((batch, *shape), dtype=np.float32)}


class Mlp(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Linear, GELU, residual, LayerNorm: float32 [batch, WIDTH] → the same."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.down(functional.gelu(self.up(x))))


def _step(x: Any) -> Any:
    return (x * 1.01 + 0.1).clamp(-3.0, 3.0)


class Looping(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """A scalar read in each step of a loop: the loop runs eagerly, what it calls is compiled."""

    def forward(self, x: Any) -> Any:
        for _ in range(4):
            x = _step(x)
            if float(x[0, 0]) > 1e30:
                x = x * 0.5
        return x


class Conv(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Convolution, batch norm, ReLU, mean: float32 [batch, 3, 8, 8] → [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, image: Any) -> Any:
        return functional.relu(self.norm(self.conv(image))).mean((2, 3))


class Attention(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """One attention layer of 4 heads: float32 [batch, tokens, WIDTH] → the same."""

    def __init__(self, *, by_hand: bool = False) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        heads = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 4, WIDTH // 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        if self.by_hand:
            y = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Lstm(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """An LSTM with its nested result: float32 [batch, tokens, 8] → (y, (h, c))."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)


class Dropping(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Drops values while in training mode: float32 [batch, WIDTH] → the same."""

    def forward(self, x: Any) -> Any:
        return functional.dropout(x, 0.5, training=self.training)


class Breaking(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Looks at a value in the middle, which breaks the graph: float32 [batch, WIDTH] → same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y.relu() if y.sum().item() > 1e9 else y.tanh()


class Named(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Two named inputs, named and nested outputs, as transformers' models have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, *, scale: Any) -> Any:
        y = self.linear(x) * scale
        return OrderedDict(logits=y, hidden=[y.relu(), None, {"sum": y.sum(-1)}])


class Broken(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Raises whatever it is given when it runs."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Any) -> Any:
        raise self.error
