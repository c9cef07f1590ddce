"""Models whose work can be made larger by a known share, for ``detection.py``.

Each is a chain of ``UNITS`` equal parts (layers, time steps, rows of a batch), so that six more are
6 % more work of exactly the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

UNITS = 100

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One model on one runtime.

    Attributes:
        threads: numbers of threads to measure it with.
        make: number of units → model, as ``portability.check`` takes it.
        inputs: number of units → named arrays.
    """

    name: str
    runtime: str
    threads: tuple[int, ...]
    make: Callable[[int], Any]
    inputs: Callable[[int], Arrays]


THREADS_OPTION = {
    "onnxruntime.cpu": "intra_op_num_threads",
    "openvino": "INFERENCE_NUM_THREADS",
    "torch": "num_threads",
    "torch.compile": "num_threads",
}


def all_subjects(packaged: Callable[[str, str], Path]) -> list[Subject]:
    """Every subject.

    Args:
        packaged: package name and path in it → the file.
    """
    silero = "silero_vad", "data/silero_vad_op18_ifless.onnx"
    both = (1, 2)
    onnx: dict[str, tuple[Callable[[int], Any], Callable[[int], Arrays]]] = {
        "compute": (functools.partial(_chain, _convolution), _of((1, 32, 28, 28))),
        "tiny": (functools.partial(_chain, _product), _of((8, 64))),
        "memory": (functools.partial(_chain, _sum), _of((2**17,))),
        "recurrent": (lambda _units: _recurrent(), lambda units: _draw((units, 1, 96))),
    }
    found = [
        Subject(name=name, runtime="onnxruntime.cpu", threads=both, make=make, inputs=inputs)
        for name, (make, inputs) in onnx.items()
    ]
    found += [
        Subject(name=name, runtime="openvino", threads=both, make=make, inputs=inputs)
        for name, (make, inputs) in onnx.items()
        if name in {"compute", "tiny"}
    ]
    found.append(
        Subject(
            name="silero-vad",
            runtime="onnxruntime.cpu",
            threads=(1,),
            make=lambda _units: packaged(*silero),
            inputs=_voice,
        )
    )
    for runtime, threads in (("torch", both), ("torch.compile", (1,))):
        found.append(
            Subject(
                name="tiny",
                runtime=runtime,
                threads=threads,
                make=functools.partial(functools.partial, torch_chain),
                inputs=_of((8, 64), "input"),
            )
        )
    return found


def _of(shape: tuple[int, ...], name: str = "x") -> Callable[[int], Arrays]:
    return lambda _units: _draw(shape, name)


def _draw(shape: tuple[int, ...], name: str = "x") -> Arrays:
    return {name: np.random.default_rng(1).standard_normal(shape, dtype=np.float32)}


def _voice(units: int) -> Arrays:
    rng = np.random.default_rng(1)
    return {
        "input": rng.standard_normal((units, 576), dtype=np.float32) * np.float32(0.05),
        "state": np.zeros((2, units, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


def torch_chain(units: int) -> Any:
    """As many small linear layers, each with its activation."""
    import torch  # noqa: PLC0415 - in the child

    torch.manual_seed(0)
    layers = [layer for _ in range(units) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval()


def _model(nodes: list[Any], tensors: list[Any], x: list[Any], y: list[Any]) -> Any:
    from onnx import TensorProto, helper  # noqa: PLC0415 - heavy

    graph = helper.make_graph(
        nodes,
        "subject",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _chain(layer: Callable[..., Any], units: int) -> Any:
    nodes: list[Any] = []
    tensors: list[Any] = []
    rng = np.random.default_rng(0)
    for i in range(units):
        name = "x" if i == 0 else f"x{i}"
        shape = layer(rng, name, "y" if i == units - 1 else f"x{i + 1}", nodes, tensors)
    return _model(nodes, tensors, shape, shape)


def _weight(tensors: list[Any], value: Any) -> str:
    from onnx import numpy_helper  # noqa: PLC0415 - heavy

    name = f"w{len(tensors)}"
    tensors.append(numpy_helper.from_array(value.astype(np.float32), name))
    return name


def _append(nodes: list[Any], op: str, given: list[str], made: str, **attributes: Any) -> None:
    from onnx import helper  # noqa: PLC0415 - heavy

    nodes.append(helper.make_node(op, given, [made], **attributes))


def _convolution(rng: Any, x: str, y: str, nodes: list[Any], tensors: list[Any]) -> list[int]:
    kernel = _weight(tensors, rng.standard_normal((32, 32, 3, 3)) * 0.06)
    _append(nodes, "Conv", [x, kernel], f"{y}_c", pads=[1] * 4)
    _append(nodes, "Relu", [f"{y}_c"], y)
    return [1, 32, 28, 28]


def _product(rng: Any, x: str, y: str, nodes: list[Any], tensors: list[Any]) -> list[int]:
    matrix = _weight(tensors, rng.standard_normal((64, 64)) * 0.12)
    _append(nodes, "MatMul", [x, matrix], f"{y}_m")
    _append(nodes, "Relu", [f"{y}_m"], y)
    return [8, 64]


def _sum(rng: Any, x: str, y: str, nodes: list[Any], tensors: list[Any]) -> list[int]:
    _append(nodes, "Add", [x, _weight(tensors, rng.standard_normal(2**17))], y)
    return [2**17]


def _recurrent() -> Any:
    tensors: list[Any] = []
    nodes: list[Any] = []
    rng = np.random.default_rng(0)
    weights = [_weight(tensors, rng.standard_normal((1, 384, 96)) * 0.05) for _ in range(2)]
    _append(nodes, "LSTM", ["x", *weights], "y", hidden_size=96)
    return _model(nodes, tensors, ["steps", 1, 96], ["steps", 1, 1, 96])
