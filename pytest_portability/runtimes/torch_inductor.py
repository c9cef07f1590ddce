"""What inductor makes of a module: the kernels it writes and calls, and what each one fuses."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse
from pytest_portability.runtimes.torch_devices import import_torch
from pytest_portability.runtimes.torch_ops import precision_word, role


def import_compiler() -> Any:
    """Import torch with inductor, which imports parts of torch that torch itself deprecates."""
    torch = import_torch("torch.compile", "compile a torch module")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")
    return torch


def learn_instruction_sets() -> None:
    """Let inductor find out which vector instructions work here, and keep it for this process.

    It starts an interpreter for each, which takes a second that every child would spend again.
    """
    with contextlib.suppress(Exception):  # what is wrong is said where a module is compiled
        torch = import_compiler()
        with _devices_uncounted(torch.cuda):
            importlib.import_module("torch.utils.cpp_extension")
        importlib.import_module("torch._inductor.cpu_vec_isa").valid_vec_isa_list()


@contextlib.contextmanager
def _devices_uncounted(cuda: Any) -> Iterator[None]:
    """Keep ``is_available()`` from counting devices.

    Where there is a CUDA toolkit, importing ``cpp_extension`` asks it, for a warning only. Whoever
    counts devices must not fork any more: torch refuses CUDA to the children ("Cannot re-initialize
    CUDA in forked subprocess"), and this process is a fork server. Both by torch's source.
    """
    ask = cuda.is_available
    cuda.is_available = lambda: True
    try:
        yield
    finally:
        cuda.is_available = ask


Graph = dict[str, "Node"]
"""Name of a node in the graph that inductor schedules → the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call of the graph that inductor schedules.

    Attributes:
        source: the operator the user's module called, before decomposition, such as ``gelu``.
        precision: of its result.
        view: nothing runs for it.
    """

    source: str
    precision: str
    view: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call in the code that inductor wrote; ``timed`` is its name in the profiler."""

    kernel: Kernel
    timed: str


@dataclass(slots=True)
class Introspection:
    """What inductor wrote down while it compiled.

    Attributes:
        folder: of its provenance files.
        graphs: in order of compilation; empty where a warm cache left nothing to compile.
    """

    folder: Path
    graphs: list[Graph] = field(default_factory=list)


@contextlib.contextmanager
def introspection(seen: Introspection, *, caches: bool) -> Iterator[None]:
    """Make inductor write down what it fuses, and hand us its graphs.

    Each generated kernel also gets a name in the profiler: some 40 ns a launch, and the price of
    taking the kernel path from the very compilation that is measured.

    Args:
        seen: where to put it.
        caches: whether a warm cache may be used, which leaves ``seen`` empty.
    """
    import_compiler()
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Spy(CustomGraphPass):  # type: ignore[misc] # torch is untyped here
        """Only a pass that names itself leaves the compilation cacheable."""

        def __call__(self, graph: Any) -> None:
            seen.graphs.append(_nodes(graph))

        def uuid(self) -> str:
            return "pytest-portability reads the graph and changes nothing"

    logger = logging.getLogger("torch._inductor.debug")
    level = logger.level
    switches: dict[str, Any] = {
        "cpp.enable_kernel_profile": True,
        "post_grad_custom_post_pass": Spy(),
        "trace.debug_dir": str(seen.folder),
        "trace.enabled": True,
        "trace.provenance_tracking_level": 1,
    }
    if not caches:
        switches["force_disable_caches"] = True
    with config.patch(switches), warnings.catch_warnings():
        # We asked for it: caches hide what is looked for.
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
        logger.setLevel(logging.ERROR)  # it announces the folder, which is about to go
        try:
            yield
        finally:
            logger.setLevel(level)


def _nodes(graph: Any) -> Graph:
    found = {}
    for node in graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            continue
        value = node.meta.get("val")
        first = value[0] if isinstance(value, list | tuple) and value else value
        source = node.meta.get("original_aten") or node.target
        found[node.name] = Node(
            source=_short(source.name() if hasattr(source, "name") else str(source)),
            precision=precision_word(first.dtype) if hasattr(first, "dtype") else "",
            view=bool(node.target.is_view),
        )
    return found


def _short(name: str) -> str:
    """``aten::add.Tensor`` → ``add``; other namespaces stay."""
    return name.partition(".")[0].removeprefix("aten::").removeprefix("prims::")


def calls_of(folder: Path, graphs: Sequence[Graph]) -> list[Call]:
    """The calls of all graphs, in order of compilation and call."""
    calls = []
    files = sorted(
        folder.rglob("inductor_provenance_tracking_node_mappings.json"),
        key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)],
    )
    unused = list(graphs)
    for file in files:
        mapping = json.loads(file.read_text(encoding="utf-8")).get("cppCodeToPost", {})
        names = {name for members in mapping.values() for name in members}
        # Several graphs use the same node names; in order, the first that holds them all is it.
        graph = next((g for g in unused if len(names & set(g)) == len(names & _all(unused))), {})
        if graph in unused:
            unused.remove(graph)
        calls += [_call(key, [graph[n] for n in mapping[key] if n in graph]) for key in mapping]
    return calls


def _all(graphs: Iterable[Graph]) -> set[str]:
    return {name for graph in graphs for name in graph}


def _call(key: str, nodes: Sequence[Node]) -> Call:
    """A call by its key in the mapping, such as ``cpp_fused_add_gelu_0:4``."""
    name = key.rpartition(":")[0] or key
    work = [node for node in nodes if not node.view] or list(nodes)
    absorbs = tuple(sorted({node.source for node in work}))
    precisions = Counter(node.precision for node in work)
    generated = re.match(r"(cpp|triton|mps|halide|cutlass|cutedsl)_", name)
    if generated:
        op, timed = re.sub(r"_\d+$", "", name), name
    else:
        op = _short(re.sub(r"^(extern_kernels|torch\.ops\.aten|aten)\.", "", name))
        library = re.match(r"torch\.ops\.(\w+)\.(\w+)", name)
        op = f"{library[1]}::{library[2]}" if library and library[1] != "aten" else op
        timed = op if "::" in op else f"aten::{op}"
    roles = {role(node.source) for node in work}
    kernel = Kernel(
        provider="inductor",
        op=op,
        role=roles.pop() if len(roles) == 1 else "compute",
        precision=max(sorted(precisions), key=precisions.__getitem__, default=""),
        implementation=generated[1] if generated else "extern",
        absorbs=absorbs,
    )
    return Call(kernel=kernel, timed=timed)


def uses_of_calls(calls: Sequence[Call], shares: Mapping[str, float]) -> tuple[KernelUse, ...]:
    """Equal kernels together; calls under one profiler name divide its share by their number."""
    together = Counter(call.timed for call in calls)
    launches: Counter[Kernel] = Counter()
    parts: dict[Kernel, float] = {}
    for call in calls:
        launches[call.kernel] += 1
        if call.timed in shares:
            share = shares[call.timed] / together[call.timed]
            parts[call.kernel] = parts.get(call.kernel, 0.0) + share
    return tuple(
        KernelUse(kernel=kernel, launches=n, share=parts.get(kernel))
        for kernel, n in sorted(launches.items())
    )
