"""Core ML's plans: the operations of a compiled model, and the device it prefers for each.

ONNX Runtime shows a model as one node. Written to the Python source of coremltools 9.0
(``MLComputePlan``; macOS 14.4 or newer) and to the options and the cache of ONNX Runtime's provider
(1.21 or newer); it has not run on a device. coremltools is used where it is installed.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_portability.errors import BuildError, RuntimeUnavailable
from pytest_portability.kernels import Kernel, KernelUse

PROVIDER = "CoreMLExecutionProvider"

_FIRST_SYSTEM = (14, 4)

_UNITS = {
    "ALL": "ALL",
    "CPUOnly": "CPU_ONLY",
    "CPUAndGPU": "CPU_AND_GPU",
    "CPUAndNeuralEngine": "CPU_AND_NE",
}
"""The provider's option ``MLComputeUnits`` → member of ``coremltools.ComputeUnit``."""

_MOVES = {"cast", "copy", "quantize", "dequantize"}
_LAYOUT = {
    *("reshape", "reshapestatic", "transpose", "permute", "concat", "concatnd", "split", "splitnd"),
    *("slice_by_index", "slice_by_size", "slicestatic", "slicedynamic", "squeeze", "expand_dims"),
    *("expanddims", "flatten", "flattento2d", "gather", "gather_nd", "gather_along_axis", "pad"),
    *("padding", "tile", "shape", "getshape", "stack", "identity", "fill"),
}
_TYPED = re.compile(r"\btensor<(\w+), \[[^\]]*\]> (\w+) = ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a plan.

    Attributes:
        op: its name, such as ``conv``.
        device: ``CPU``, ``GPU`` or ``NeuralEngine``.
        precision: type of what it makes; empty where the model does not say.
        weight: Core ML's estimate of its part (0–1) of the model's work, None where it has none.
    """

    op: str
    device: str
    precision: str = ""
    weight: float | None = None


def settings(folder: Path) -> dict[str, str]:
    """Options with which the provider leaves compiled models in a folder that holds none yet."""
    return {"ModelCacheDirectory": folder.as_posix()}


def read(folder: Path, units: str = "ALL") -> list[list[Operation]]:
    """The plan of every compiled model in a folder.

    Args:
        folder: from ``settings``.
        units: the provider's option ``MLComputeUnits`` in force.

    Raises:
        BuildError: no model was left, or a plan names no device.
        RuntimeUnavailable: no coremltools is here, or macOS is too old.
    """
    models = sorted(folder.glob("**/*.mlmodelc"))
    if not models:
        msg = "no compiled model was left (ModelCacheDirectory needs onnxruntime 1.21)"
        raise BuildError(msg)
    system = platform.mac_ver()[0]
    if system and tuple(map(int, system.split(".")[:2])) < _FIRST_SYSTEM:
        msg = f"Core ML tells its plans from macOS 14.4 on; this is macOS {system}"
        raise RuntimeUnavailable(msg)
    try:
        coremltools = importlib.import_module("coremltools")
        module = importlib.import_module("coremltools.models.compute_plan")
    except ImportError as exc:
        msg = f"their plans are read by the package coremltools: {exc}"
        raise RuntimeUnavailable(msg) from exc
    unit = coremltools.ComputeUnit[_UNITS[units]]
    plans = [
        list(_operations(module.MLComputePlan.load_from_path(str(file), unit), file))
        for file in models
    ]
    if not all(plans):
        msg = "a plan names no device for any operation"
        raise BuildError(msg)
    return plans


def uses(plans: Sequence[Iterable[Operation]]) -> tuple[KernelUse, ...]:
    """Turn plans into kernels; who runs one is the provider and the device Core ML prefers.

    Shares are the estimated weights. Of several models they are left out: each is a whole of its
    own, and nothing tells how the models compare.
    """
    launches: Counter[Kernel] = Counter()
    weights: defaultdict[Kernel, list[float | None]] = defaultdict(list)
    for operation in (operation for plan in plans for operation in plan):
        kernel = _kernel(operation)
        launches[kernel] += 1
        weights[kernel].append(operation.weight if len(plans) == 1 else None)
    return tuple(
        KernelUse(kernel=kernel, launches=n, share=_sum(weights[kernel]))
        for kernel, n in sorted(launches.items())
    )


def _sum(weights: Sequence[float | None]) -> float | None:
    known = [weight for weight in weights if weight is not None]
    return None if len(known) < len(weights) else min(1.0, sum(known))


def _kernel(operation: Operation) -> Kernel:
    kind = operation.op.lower()
    return Kernel(
        provider=f"{PROVIDER}:{operation.device}",
        op=operation.op,
        role="move" if kind in _MOVES else "layout" if kind in _LAYOUT else "compute",
        precision=operation.precision,
    )


def _operations(plan: Any, file: Path) -> Iterator[Operation]:
    """Those that run somewhere: constants have no device."""
    structure = plan.model_structure
    if structure.program is not None:
        types = _types(file)
        for operation in _nested(structure.program.functions["main"].block):
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
            if usage is not None:
                made = [types[out.name] for out in operation.outputs if out.name in types]
                yield Operation(
                    op=re.sub(r"^ios\d+\.", "", operation.operator_name),
                    device=_device(usage),
                    precision=made[0] if made else "",
                    weight=None if cost is None else cost.weight,
                )
    elif structure.neuralnetwork is not None:  # the provider's default format; it has no estimates
        for layer in structure.neuralnetwork.layers:
            usage = plan.get_compute_device_usage_for_neuralnetwork_layer(layer)
            if usage is not None:
                device = _device(usage)
                precision = "fp16" if device == "NeuralEngine" else ""  # it has no other floats
                yield Operation(op=layer.type, device=device, precision=precision)


def _nested(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _nested(inner)


def _device(usage: Any) -> str:
    """``NeuralEngine`` of an ``MLNeuralEngineComputeDevice``."""
    name = type(usage.preferred_compute_device).__name__
    return name.removeprefix("ML").removesuffix("ComputeDevice")


def _types(file: Path) -> Mapping[str, str]:
    """Name → type of what a program's operations make: coremltools gives no types."""
    program = file / "model.mil"
    if not program.is_file():
        return {}
    found = _TYPED.findall(program.read_text(encoding="utf-8", errors="replace"))
    return {name: kind for kind, name in found}


__all__ = ["PROVIDER", "Operation", "read", "settings", "uses"]
