"""Reads ONNX Runtime's profile: events to kernels, shares of time, arena peak, what was fused."""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse, onnx_role
from pytest_portability.runtimes import openvino_layers

_CONTROL = {"If", "Loop", "Scan"}
"""Their time is the time of the nodes in their bodies, which are recorded themselves."""

_PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Attention", "LSTM", "GRU", "RNN", "Einsum"}

_BLOCKABLE = {"Conv", "FusedConv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}

_DTYPES = {
    "float": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "double": "fp64",
    "int8": "int8",
    "uint8": "int8",
}


def _word(dtype: str) -> str:
    """The glossary's word for a type of ONNX Runtime's; empty if there is none."""
    # float8e4m3fn and float8e5m2, and AMD's with fnuz behind.
    return "fp8" if dtype.startswith("float8") else _DTYPES.get(dtype, "")


def normal(op: str) -> str:
    """Op name without the hashes and running numbers a compiling provider puts into it.

    ``OpenVINOExecutionProvider_11857231728490505789_0`` becomes ``OpenVINOExecutionProvider``.
    """
    return re.sub(r"(?:_\d+)+(?=_|$)", "", op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profile tells.

    Attributes:
        uses: kernels with launches per inference; shares are None where times cannot be trusted.
        arena_peak_bytes: most bytes in use in the arena during the first run, with weights that
            ONNX Runtime repacked; None where it is switched off or another provider, whose memory
            it does not hold, took part.
        caveats: what this profile cannot tell, one sentence each.
    """

    uses: tuple[KernelUse, ...]
    arena_peak_bytes: int | None = None
    caveats: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    """Launches of each kernel in all runs, and its time in each of them."""

    events: Counter[Kernel] = field(default_factory=Counter)
    microseconds: defaultdict[Kernel, Counter[int]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def typical(self, kernel: Kernel, runs: int) -> float:
        """Microseconds of a kernel in a run: the median, for a neighbour spoils one of them."""
        return median(self.microseconds[kernel][run] for run in range(runs))


def read(
    events: Sequence[Mapping[str, Any]],
    trusted: Iterable[str],
    absorbs: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
    compiling: Iterable[str] = (),
) -> Profile:
    """Turn a profile's events into kernels.

    Args:
        events: the JSON file; the first run in it is left out as warm-up if there are others.
        trusted: providers whose node times are times of work.
        absorbs: (op, node name) → source op types, from ``fused``.
        compiling: providers whose nodes are compiled subgraphs, which compute as they like.
    """
    runs = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: e["ts"])
    first_ends = runs[0]["ts"] + runs[0]["dur"] if runs else math.inf
    start = first_ends if len(runs) > 1 else 0
    runs = runs[1:] or runs
    timed = [e for e in events if e["ts"] >= start and e.get("cat") in ("Node", "Kernel")]
    containers, opaque = _containers(events), set(compiling)
    begun = [run["ts"] for run in runs]
    tally = _Tally()
    for event in timed:
        if event["cat"] == "Kernel":
            kernel = _sub_kernel(event)
        elif event["name"] in containers or not event["args"].get("op_name"):
            continue
        else:
            kernel = _node_kernel(event, absorbs or {}, opaque)
        if kernel is not None:
            tally.events[kernel] += 1
            run = max(0, bisect.bisect_right(begun, event["ts"]) - 1)
            tally.microseconds[kernel][run] += 0 if kernel.op in _CONTROL else event["dur"]
    untrusted = sorted({k.provider for k in tally.events} - set(trusted) - _reporting(timed))
    alone = {kernel.provider for kernel in tally.events} == {"CPUExecutionProvider"}
    # The first run's, which allocates what it needs: later ones reserve it as one block, which the
    # arena rounds up to one of two sizes by the order of the graph in this process.
    peaks = [
        int(e["args"]["mem_in_use_peak"])
        for e in events
        if alone and _has_peak(e) and e["ts"] <= first_ends
    ]
    return Profile(
        uses=_uses(tally, runs, shares=not untrusted),
        arena_peak_bytes=max(peaks, default=None),
        caveats=tuple(f"times of {p} are launch times, so no shares" for p in untrusted),
    )


def _containers(events: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of nodes whose time is that of the kernels below them.

    The reference to the parent is not to be relied on: the last run's kernels, and sometimes all,
    were seen to name ``SequentialExecutor::Execute`` (OpenVINO provider 1.8.1).
    """
    kernels = [e["args"] for e in events if e.get("cat") == "Kernel"]
    reporting = {args.get("ep") for args in kernels}
    compiled = {
        str(e["name"])
        for e in events
        if e.get("cat") == "Node"
        and e["args"].get("provider") in reporting
        and normal(e["args"].get("op_name", "")) == e["args"]["provider"]
    }
    return compiled | {str(args.get("parent_ort_event_name")) for args in kernels}


def _reporting(events: Sequence[Mapping[str, Any]]) -> set[str]:
    """Providers that time their own kernels."""
    return {str(e["args"].get("ep", "")) for e in events if e["cat"] == "Kernel"}


def _has_peak(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and "mem_in_use_peak" in event["args"]


def _uses(
    tally: _Tally, runs: Sequence[Mapping[str, Any]], *, shares: bool
) -> tuple[KernelUse, ...]:
    count = max(1, len(runs))
    times = {kernel: tally.typical(kernel, count) for kernel in tally.events}
    # Streams of one provider may overlap, so that kernels add up to more than the run.
    total = max(median(run["dur"] for run in runs) if runs else 0, sum(times.values())) or 1
    return tuple(
        KernelUse(
            kernel=kernel,
            launches=max(1, round(n / count)),
            share=times[kernel] / total if shares else None,
        )
        for kernel, n in sorted(tally.events.items())
    )


def _sub_kernel(event: Mapping[str, Any]) -> Kernel | None:
    """A kernel that a provider reports below its compiled node."""
    args = event["args"]
    if args.get("ov_status", "EXECUTED") != "EXECUTED":
        return None
    layer, implementation = args.get("ov_node_type", ""), args.get("ov_exec_type", "")
    op = layer or event["name"]
    return Kernel(
        provider=args.get("ep", ""),
        op=normal(op),
        role=openvino_layers.role(layer) if layer else onnx_role(op),
        precision=openvino_layers.precision_in(implementation),
        implementation=implementation,
    )


def _node_kernel(
    event: Mapping[str, Any],
    absorbs: Mapping[tuple[str, str], tuple[str, ...]],
    compiling: Collection[str],
) -> Kernel:
    args, op = event["args"], event["args"]["op_name"]
    name = event["name"].removesuffix("_kernel_time")
    # A compiled subgraph takes and leaves tensors of the model's type, whatever it computes in; one
    # of a provider that runs single nodes too (DmlFusedNode_0_41) is known by its number.
    compiled = args.get("provider") in compiling or normal(op) != op
    opaque = compiled and onnx_role(op) == "compute"
    return Kernel(
        provider=args.get("provider", ""),
        op=normal(op),
        role=onnx_role(op),
        precision="" if opaque else _precision(op, args),
        implementation=_layout(args.get("provider", ""), op, name),
        absorbs=absorbs.get((op, name), absorbs.get((op, ""), ())),
    )


def _layout(provider: str, op: str, name: str) -> str:
    """ONNX Runtime names no CPU kernel; only its blocked layout shows, in the node's name."""
    if name.endswith("_nchwc"):
        return "nchwc"
    return "nchw" if provider == "CPUExecutionProvider" and op in _BLOCKABLE else ""


def _precision(op: str, args: Mapping[str, Any]) -> str:
    read_types = [t for shape in args.get("input_type_shape", []) for t in shape]
    made = [t for shape in args.get("output_type_shape", []) for t in shape]
    if onnx_role(op) == "compute":
        # Such products leave int32 or, rescaled, wider floats behind.
        words = {_word(t) for t in read_types}
        if short := next((word for word in ("int8", "fp8") if word in words), ""):
            return short
    return next(filter(None, map(_word, made)), "")


def fused(source: Any, optimised: Any) -> dict[tuple[str, str], tuple[str, ...]]:
    """Which source ops each node of the optimised graph computes.

    A fused node keeps the name of the tensor it makes, or a node that only moves data behind it
    does. From there the source graph is walked back through tensors that no longer exist; the
    computing ops passed are what was fused. Nothing is said of nodes that only move data or
    cannot be followed (blocked-layout convolutions) nor, beside the latter, of walks that may have
    run through one.

    Args:
        source: ``onnx.ModelProto`` as it was loaded.
        optimised: the one ONNX Runtime saved.

    Returns:
        (op, node name) → sorted source op types; ("op", "") for unnamed nodes of one answer.
    """
    walker = _Walker(source, optimised)
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    unnamed: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for node in optimised.graph.node:
        ops = walker.ops(node)
        if node.name:
            found[node.op_type, node.name] = ops
        else:
            unnamed[node.op_type].add(ops)
    one_answer = {(op, ""): next(iter(ways)) for op, ways in unnamed.items() if len(ways) == 1}
    return {**found, **one_answer}


class _Walker:
    """The source graph beside the optimised one."""

    def __init__(self, source: Any, optimised: Any) -> None:
        graph = optimised.graph
        self._makers = {name: node for node in source.graph.node for name in node.output if name}
        self._readers: defaultdict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
        self._alive = {name for node in graph.node for name in node.output}
        self._alive |= {value.name for value in graph.input}
        self._alive |= {tensor.name for tensor in graph.initializer}
        compute = [node for node in graph.node if onnx_role(node.op_type) == "compute"]
        self._lost = any(not self._origins(node) for node in compute)

    def ops(self, node: Any) -> tuple[str, ...]:
        """Sorted op types that the node stands for; empty where that cannot be told."""
        if onnx_role(node.op_type) != "compute":
            return ()
        ops = self._walk(self._origins(node))
        products = [op for op in ops if op in _PRODUCTS]
        return () if self._lost and len(products) > 1 else ops

    def _origins(self, node: Any) -> list[str]:
        """The source's tensors that the node makes, seen through layout changes behind it."""
        if node.name.endswith("_nchwc"):
            return []
        found = []
        for output in filter(None, node.output):
            name, readers = output, self._readers[output]
            while name not in self._makers and len(readers) == 1:
                if onnx_role(readers[0].op_type) == "compute":
                    break
                name = readers[0].output[0]
                readers = self._readers[name]
            found += [name] if name in self._makers else []
        return found

    def _walk(self, start: Sequence[str]) -> tuple[str, ...]:
        pending, seen, ops = list(start), set(), []
        while pending:
            node = self._makers.get(pending.pop())
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if onnx_role(node.op_type) == "compute":
                ops.append(node.op_type)
            pending += [name for name in node.input if name and name not in self._alive]
        return tuple(sorted(ops))


__all__ = ["Profile", "fused", "normal", "read"]
