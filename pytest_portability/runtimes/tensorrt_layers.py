"""TensorRT's engines by its own inspector: the layers in them, their types, what each one fuses.

ONNX Runtime shows an engine as one node. How much an engine tells is settled when it is built, and
ONNX Runtime's provider has no option for more than the names (microsoft/onnxruntime #28582).
Written to NVIDIA's documentation of ``EngineInspector`` (TensorRT 8.5 to 11), and layer files and
logs of others; it has not run on a device.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse, onnx_role

PROVIDER = "TensorrtExecutionProvider"

_TYPES = (
    ("int8", "int8"),
    ("fp8", "fp8"),
    ("bfloat16", "bf16"),
    ("bf16", "bf16"),
    ("half", "fp16"),
    ("fp16", "fp16"),
    ("float16", "fp16"),
    ("float", "fp32"),
    ("fp32", "fp32"),
)
"""Words for a tensor's type, the first that is found: TensorRT 10 writes ``Half``, others
``Row major linear FP16 format``."""

_MOVES = {"reformat", "cast", "copy", "reorder"}
_LAYOUT = {"shuffle", "noop", "gather", "slice", "concatenation", "constant", "identity"}
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_BETWEEN = re.compile(r" \+ | \|\| |, |\.\.\.|PWN\(|\{ForeignNode\[|\]\}")
"""What stands between the nodes of a layer's name: fused, side by side, pointwise, a block of which
only the first and the last are named."""

Layer = Mapping[str, Any] | str
"""What the inspector says of a layer: its facts, or its name only."""


def settings(folder: Path, cache_dir: str) -> dict[str, str]:
    """Options with which the provider leaves engines that can be inspected.

    Args:
        folder: where they go. It must hold none yet, or what is read was not built here.
        cache_dir: holds the timing cache of the measured builds, so that the same tactics win;
            empty for none.
    """
    found = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": folder.as_posix(),
    }
    if cache_dir:
        found |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": cache_dir}
    return found


def read(folder: Path) -> list[Layer]:
    """The layers of every engine in a folder.

    Raises:
        ImportError: the package tensorrt is not installed.
        ValueError: no engine, one of another TensorRT, or none that tells a layer.
    """
    engines = sorted(folder.glob("**/*.engine"))
    if not engines:
        msg = "no engine was left"
        raise ValueError(msg)
    tensorrt = importlib.import_module("tensorrt")
    opener = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    layers: list[Layer] = []
    for file in engines:
        engine = opener.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            msg = f"TensorRT {tensorrt.__version__} does not read the engine that was built"
            raise ValueError(msg)
        told = engine.create_engine_inspector().get_engine_information(
            tensorrt.LayerInformationFormat.JSON
        )
        layers += json.loads(told)["Layers"]
    if not layers:
        msg = "the engine does not tell its layers"
        raise ValueError(msg)
    return layers


def names_only(layers: Iterable[Layer]) -> bool:
    """Whether some are told by their names only: neither types nor implementations are known."""
    return any(isinstance(layer, str) for layer in layers)


def uses(layers: Iterable[Layer], op_by_name: Mapping[str, str]) -> tuple[KernelUse, ...]:
    """Turn an inspector's layers into kernels, each of them launched once.

    Times are not told, so there are no shares. The tactic is no part of a kernel: which one wins
    changes from build to build. A layer of which only the name is told has no precision; what it
    does is guessed from the nodes in its name.

    Args:
        layers: from ``read``.
        op_by_name: the source's op types by node and tensor name.
    """
    counts = Counter(
        _named_kernel(layer, op_by_name) if isinstance(layer, str) else _kernel(layer, op_by_name)
        for layer in layers
    )
    return tuple(KernelUse(kernel=kernel, launches=n) for kernel, n in sorted(counts.items()))


def _kernel(layer: Mapping[str, Any], op_by_name: Mapping[str, str]) -> Kernel:
    op, name = str(layer.get("LayerType", "")), str(layer.get("Name", ""))
    nodes = _NODE.findall(str(layer.get("Metadata", ""))) or _nodes(name, op_by_name)
    role = _role(op, name)
    if role == "move":
        nodes = []  # a copy is named for what it feeds
    return Kernel(
        provider=PROVIDER,
        op=op,
        role=role,
        precision=_precision(layer),
        absorbs=tuple(sorted(_ops_of(nodes, op_by_name))),
    )


def _named_kernel(name: str, op_by_name: Mapping[str, str]) -> Kernel:
    if _copies(name):
        return Kernel(provider=PROVIDER, op="Reformat", role="move")
    absorbs = tuple(sorted(_ops_of(_nodes(name, op_by_name), op_by_name)))
    if name.startswith("{ForeignNode["):  # what lies between the two ends that are named computes
        return Kernel(provider=PROVIDER, op="ForeignNode", absorbs=absorbs)
    roles = {onnx_role(op) for op in absorbs} or {"compute"}
    return Kernel(
        provider=PROVIDER,
        op="pointwise" if name.startswith("PWN(") else "layer",
        role=next(role for role in ("compute", "layout", "move") if role in roles),
        absorbs=absorbs,
    )


def _ops_of(nodes: Iterable[str], op_by_name: Mapping[str, str]) -> Iterator[str]:
    """Op types of those nodes that are the model's; TensorRT adds its own."""
    return filter(None, (_op(node, op_by_name) for node in nodes))


def _op(node: str, op_by_name: Mapping[str, str]) -> str:
    # The latter is the parser's name of a node that has none (getNodeName of onnx-tensorrt).
    op = op_by_name.get(node) or op_by_name.get(node.removeprefix("node_of_"), "")
    # PWN's brackets are closed behind the last name in them, which may end in one itself.
    return _op(node[:-1], op_by_name) if not op and node.endswith(")") else op


def _nodes(name: str, op_by_name: Mapping[str, str]) -> Sequence[str]:
    """The names in a layer's name."""
    return [name] if name in op_by_name else _BETWEEN.split(name)


def _role(op: str, name: str) -> str:
    kind = op.lower()
    if kind in _MOVES or _copies(name):
        return "move"
    return "layout" if kind in _LAYOUT else "compute"


def _copies(name: str) -> bool:
    """``Reformatting CopyNode for Input Tensor 0 to Conv_0``, and ``Concat_7 copy``."""
    return name.startswith("Reformatting CopyNode") or name.endswith(" copy")


def _precision(layer: Mapping[str, Any]) -> str:
    """Of what it reads, where that is a number: a product of int8 may well write floats."""
    types = [_type_of(t) for t in (*_tensors(layer, "Inputs"), *_tensors(layer, "Outputs"))]
    found = next((kind for kind in types if kind), "")
    tactic = str(layer.get("TacticName", "")).lower()
    return "tf32" if found == "fp32" and "tf32" in tactic else found


def _tensors(layer: Mapping[str, Any], side: str) -> Sequence[Mapping[str, Any]]:
    found = layer.get(side, ())
    return [tensor for tensor in found if isinstance(tensor, Mapping)]


def _type_of(tensor: Mapping[str, Any]) -> str:
    named = tensor.get("Format/Datatype") or tensor.get("DataType") or tensor.get("Datatype", "")
    words = str(named).lower()
    return next((kind for word, kind in _TYPES if word in words), "")


__all__ = ["PROVIDER", "Layer", "names_only", "read", "settings", "uses"]
