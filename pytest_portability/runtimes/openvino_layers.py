"""Reads OpenVINO's runtime model: the layers that run, their precision, what was fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse

_PRECISIONS = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f64": "fp64",
    "i8": "int8",
    "u8": "int8",
}
_CONTROL = ("If", "Loop", "TensorIterator")
_NOT_RUN = ("Input", "Output", "Const", "Constant", "Parameter", "Result")
_MOVE = ("Reorder", "Convert", "FakeQuantize", "MemoryInput", "MemoryOutput")
_LAYOUT = (
    *(
        "Reshape",
        "Transpose",
        "Concatenation",
        "Concat",
        "Split",
        "StridedSlice",
        "Slice",
        "Gather",
    ),
    *("ShapeOf", "Broadcast", "Tile", "Squeeze", "Unsqueeze", "Permute", "Crop", "Pad"),
)
_HEAVY = (
    *("Convolution", "Deconvolution", "FullyConnected", "MatMul", "Gemm", "RNNSeq", "RNNCell"),
    *("ScaledDotProductAttention", "ScaledDotProductAttentionWithKVCache", "BinaryConvolution"),
)


def precision_in(implementation: str) -> str:
    """Precision in an implementation's name: ``brgemm_avx512_bf16`` is ``bf16``."""
    name, _, suffix = implementation.rpartition("_")
    return "" if name == "unknown" else _PRECISIONS.get(suffix.lower(), "")


def of_compiled(compiled: Any) -> list[dict[str, str]]:
    """The layers of a compiled model, as ``read``; none where the device does not tell them.

    The NPU's plugin makes a dummy of the inputs and outputs only, and raises where it cannot, by
    its source; not seen on a device.
    """
    try:
        model = compiled.get_runtime_model()
    except RuntimeError as exc:
        if "dummy" not in str(exc):
            raise
        return []
    return read(model)


def read(model: Any) -> list[dict[str, str]]:
    """Facts of each layer that runs for every inference, in order.

    Layers that depend on constants only (weights being reordered) run once, when the model is
    loaded. A node without a type is no layer: it is one of the model, not of what runs.
    """
    found: list[dict[str, str]] = []
    constant: set[str] = set()
    for node in model.get_ordered_ops():
        info = node.get_rt_info()
        facts = {key: info[key].astype(str) for key in info}
        kind = facts.get("layerType", "")
        sources = [value.get_node().get_friendly_name() for value in node.input_values()]
        if kind in ("Const", "Constant") or (sources and constant.issuperset(sources)):
            constant.add(node.get_friendly_name())
        elif kind and kind not in _NOT_RUN:
            found.append(facts)
    return found


def _precision_of(layer: Mapping[str, str]) -> str:
    if layer.get("layerType") in _CONTROL:
        return ""  # what it says is the precision of its condition
    # The implementation first: a product of dequantised numbers was seen to say i8 and run in f32.
    ran = precision_in(layer.get("primitiveType", ""))
    return ran or _PRECISIONS.get(layer.get("runtimePrecision", "").lower(), "")


def role(op: str) -> str:
    """``move``, ``layout`` or ``compute`` of a layer type."""
    return "move" if op in _MOVE else "layout" if op in _LAYOUT else "compute"


def effective(layers: Sequence[Mapping[str, str]]) -> str:
    """The commonest precision of the layers that do the work, or of all that compute."""
    heavy = [layer for layer in layers if layer.get("layerType") in _HEAVY]
    compute = heavy or [layer for layer in layers if role(layer.get("layerType", "")) == "compute"]
    counts = Counter(p for layer in compute if (p := _precision_of(layer)))
    return max(sorted(counts), key=lambda precision: counts[precision]) if counts else ""


def uses(
    layers: Sequence[Mapping[str, str]], provider: str, op_by_name: Mapping[str, str]
) -> tuple[KernelUse, ...]:
    """Turn layers into kernels.

    Args:
        layers: from ``read``, after an inference with performance counters.
        provider: who ran them, such as ``ov:CPU``.
        op_by_name: from ``onnx_graph``.
    """
    counts: Counter[Kernel] = Counter()
    times: Counter[Kernel] = Counter()
    for layer in layers:
        names = layer.get("originalLayersNames", "").split(",")
        op = layer.get("layerType", "")
        kernel = Kernel(
            provider=provider,
            op=op,
            role=role(op),
            precision=_precision_of(layer),
            implementation=layer.get("primitiveType", ""),
            # Names that the ONNX graph does not have are the compiler's own and renumber.
            absorbs=tuple(sorted(op_by_name[name] for name in names if name in op_by_name)),
        )
        counts[kernel] += 1
        # "not_executed" is what a counter says that rounds to 0 µs, so it flips from run to run:
        # it is no reason to leave a layer out.
        spent = layer.get("execTimeMcs", "")
        times[kernel] += int(spent) if spent.isdigit() else 0
    total = sum(times.values())
    return tuple(
        KernelUse(kernel=k, launches=n, share=times[k] / total if total else None)
        for k, n in sorted(counts.items())
    )


__all__ = ["effective", "of_compiled", "precision_in", "read", "role", "uses"]
