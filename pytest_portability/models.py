"""What a model is before it is built: kind, weights, graph, framework, op-set, signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""Named arrays in the model's own order. A torch module's positional-only inputs are named by
their position as a decimal string."""

Dim = int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, NumPy dtype name and shape of one input or output; None is an unknown dimension."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model loaded in this process.

    Attributes:
        kind: ``onnx`` or ``torch``.
        value: an ``onnx.ModelProto`` (may lack external data) or a ``torch.nn.Module`` in eval mode.
        path: the ``.onnx`` file, if the model came from one; runtimes read it themselves, which
            keeps external data working.
    """

    kind: str
    value: Any
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What identifies a model, whatever it is built for.

    Attributes:
        kind: ``onnx`` or ``torch``.
        framework: producer and version, such as ``pytorch 2.13.0``; empty where unknown.
        opset: domain → version; empty for a torch module.
        weights: order-free hash over names, dtypes, shapes and bytes.
        tensors: tensor name → short digest.
        graph: structural hash, blind to names, order, metadata and data layout; empty for torch.
        parameters: number of weight elements.
        inputs: required inputs (initialisers are not), in order.
        outputs: outputs in order; empty for a torch module, whose outputs only a run tells.
    """

    kind: str
    framework: str
    opset: Mapping[str, int]
    weights: str
    tensors: Mapping[str, str]
    graph: str
    parameters: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def signature(arrays: Arrays) -> tuple[TensorSpec, ...]:
    """The concrete signature of named arrays."""
    return tuple(
        TensorSpec(name=name, dtype=np.asarray(a).dtype.name, shape=np.shape(a))
        for name, a in arrays.items()
    )
