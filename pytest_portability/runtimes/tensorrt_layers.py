"""TensorRT's engines by its own inspector: the layers in them, their types, what each one fuses.

ONNX Runtime shows an engine as one node. Written to NVIDIA's documentation of ``EngineInspector``
(TensorRT 8.5 to 11) and layer files of others; it has not run on a device.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse

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


def settings(folder: Path, cache_dir: str) -> dict[str, str]:
    """Options with which the provider leaves engines that can be inspected.

    Args:
        folder: where they go. It must hold none yet: one that was built without details stays so.
        cache_dir: holds the timing cache of the measured builds, so that the same tactics win;
            empty for none.
    """
    found = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": folder.as_posix(),
        "trt_detailed_build_log": "1",  # it is what sets the engine's verbosity to detailed
    }
    if cache_dir:
        found |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": cache_dir}
    return found


def read(folder: Path) -> list[Mapping[str, Any]]:
    """The layers of every engine in a folder.

    Raises:
        ImportError: the package tensorrt is not installed.
        ValueError: an engine of another TensorRT, or one that names its layers only.
    """
    engines = sorted(folder.glob("**/*.engine"))
    if not engines:
        msg = "no engine was left"
        raise ValueError(msg)
    tensorrt = importlib.import_module("tensorrt")
    opener = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    layers: list[Mapping[str, Any]] = []
    for file in engines:
        engine = opener.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            msg = f"TensorRT {tensorrt.__version__} does not read the engine that was built"
            raise ValueError(msg)
        told = engine.create_engine_inspector().get_engine_information(
            tensorrt.LayerInformationFormat.JSON
        )
        layers += json.loads(told)["Layers"]
    if any(isinstance(layer, str) for layer in layers):
        msg = "the engine tells the names of its layers only"
        raise ValueError(msg)
    return layers


def uses(
    layers: Iterable[Mapping[str, Any]], op_by_name: Mapping[str, str]
) -> tuple[KernelUse, ...]:
    """Turn an inspector's layers into kernels, each of them launched once.

    Times are not told, so there are no shares. The tactic is no part of a kernel: which one wins
    changes from build to build.

    Args:
        layers: from ``read``.
        op_by_name: the source's op types by node and tensor name.
    """
    counts = Counter(_kernel(layer, op_by_name) for layer in layers)
    return tuple(KernelUse(kernel=kernel, launches=n) for kernel, n in sorted(counts.items()))


def _kernel(layer: Mapping[str, Any], op_by_name: Mapping[str, str]) -> Kernel:
    op, name = str(layer.get("LayerType", "")), str(layer.get("Name", ""))
    nodes = _NODE.findall(str(layer.get("Metadata", ""))) or name.split(" + ")
    role = _role(op, name)
    if role == "move":
        nodes = []  # a copy is named for what it feeds
    return Kernel(
        provider=PROVIDER,
        op=op,
        role=role,
        precision=_precision(layer),
        absorbs=tuple(sorted(op_by_name[node] for node in nodes if node in op_by_name)),
    )


def _role(op: str, name: str) -> str:
    kind = op.lower()
    if kind in _MOVES or name.startswith("Reformatting CopyNode"):
        return "move"
    return "layout" if kind in _LAYOUT else "compute"


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


__all__ = ["PROVIDER", "read", "settings", "uses"]
