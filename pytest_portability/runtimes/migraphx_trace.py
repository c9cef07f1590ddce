"""What MIGraphX prints of the programs it runs: instructions with their times, as kernels.

ONNX Runtime shows a program as one node. Written to the source of ``program::eval`` and of the
printed operators (ROCm/AMDMIGraphX, 2021 to 2026); it has not run on a device.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pytest_portability.kernels import Kernel, KernelUse, onnx_role
from pytest_portability.runtimes.onnxruntime_profile import normal

PROVIDER = "MIGraphXExecutionProvider"

VARIABLE = "MIGRAPHX_TRACE_EVAL"
"""Environment variable; at 1 or more MIGraphX prints. It is read once in a process."""

END_OF_RUN = "-- end of a run --"
"""The line that whoever captures the text writes after each inference."""

_BEGIN = "Run instruction: "
# Until the launch returned, and until the device was done.
_TIME = re.compile(r"Time: \S+ms, (\S+)ms\s*$")
_INSTRUCTION = re.compile(r"(?P<name>.*?) = (?P<op>[\w:@]+)(?P<rest>.*)")
_SYMBOL = re.compile(r"\bsymbol_name=(\w+)")

_IDLE = {
    # Other views of what is in memory already.
    *("load", "multibroadcast", "broadcast", "scalar", "reshape", "reshape_lazy", "transpose"),
    *("slice", "squeeze", "unsqueeze", "flatten", "as_shape", "get_tuple_elem", "identity"),
    # Memory that was taken and filled when the program was compiled.
    *("allocate", "undefined", "hip::allocate", "hip::hip_allocate_memory"),
    "hip::hip_copy_literal",
    # Nothing is left to wait for.
    *("hip::sync_stream", "gpu::record_event", "gpu::set_stream", "gpu::wait_event"),
}
"""Instructions that launch nothing; so do those that begin with ``@`` or ``check_context``."""

_TYPES = {"half": "fp16", "float": "fp32", "double": "fp64"}
_FLOATS = {"fp64", "fp32", "fp16", "bf16", "fp8"}

_MOVES = {"contiguous", "convert", "layout", "quantizelinear", "dequantizelinear"}
_LAYOUT = {"gather", "concat", "pad", "slice", "transpose", "reshape", "broadcast", "noop"}

_PRODUCT, _CONVOLUTION = ("MatMul", "Gemm"), ("Conv",)
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "dot": _PRODUCT,
    "gemm": _PRODUCT,
    "quantdot": (*_PRODUCT, "QLinearMatMul", "MatMulInteger"),
    "quantgemm": (*_PRODUCT, "QLinearMatMul", "MatMulInteger"),
    "convolution": _CONVOLUTION,
    "channelwiseconv": _CONVOLUTION,
    "quantconvolution": (*_CONVOLUTION, "QLinearConv", "ConvInteger"),
    "convolutionbackwards": ("ConvTranspose",),
    "layernorm": ("LayerNormalization",),
    "pooling": ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"),
}
"""MIGraphX's words that are not ONNX's in lower case → the op types they may stand for."""

_LONGEST_WORD = 3
"""Parts of the longest name of an operator, such as ``reduce_log_sum``."""


@dataclass(slots=True)
class _Open:
    """An instruction that has begun.

    ``holds`` tells that others ran inside: their time is its time.
    """

    kernel: Kernel | None
    holds: bool = False


def uses(text: str, source: Iterable[str]) -> tuple[KernelUse, ...]:
    """Turn printed runs into kernels, with launches of an inference and shares of its time.

    MIGraphX waits for each instruction, so the shares are of the sum of all; a kernel's time is the
    median of the runs.

    Args:
        text: of several runs, ``END_OF_RUN`` behind each; the first is left out as warm-up if there
            are others.
        source: the op types of the graph.

    Raises:
        ValueError: no instruction is in it.
    """
    by_word = {op.lower(): op for op in source}
    runs = [_run(part, by_word) for part in text.split(END_OF_RUN)[:-1]]
    runs = runs[1:] or runs
    launches = Counter(kernel for run in runs for kernel, _ in run)
    if not launches:
        msg = f"it printed no instruction, though {VARIABLE} asked for it"
        raise ValueError(msg)
    summed = [_summed(run) for run in runs]
    times = {kernel: median(run[kernel] for run in summed) for kernel in launches}
    total = sum(times.values())
    return tuple(
        KernelUse(
            kernel=kernel,
            launches=max(1, round(n / len(runs))),
            share=times[kernel] / total if total else None,
        )
        for kernel, n in sorted(launches.items())
    )


def _summed(run: Iterable[tuple[Kernel, float]]) -> defaultdict[Kernel, float]:
    """Milliseconds of each kernel in a run; 0 where it was not launched."""
    found: defaultdict[Kernel, float] = defaultdict(float)
    for kernel, milliseconds in run:
        found[kernel] += milliseconds
    return found


def _run(text: str, by_word: Mapping[str, str]) -> list[tuple[Kernel, float]]:
    """The kernels of one run in their order, with milliseconds."""
    found: list[tuple[Kernel, float]] = []
    types: dict[str, str] = {}
    stack: list[_Open] = []
    for line in text.splitlines():
        if line.startswith(_BEGIN):
            if stack:
                stack[-1].holds = True
            stack.append(_Open(_kernel(line.removeprefix(_BEGIN), types, by_word)))
        elif stack and (timed := _TIME.match(line)):
            done = stack.pop()
            if done.kernel is not None and not done.holds:
                found.append((done.kernel, float(timed[1])))
    return found


def _kernel(text: str, types: dict[str, str], by_word: Mapping[str, str]) -> Kernel | None:
    """The kernel of an instruction, None where it launches none; its type is kept by its name."""
    parts = _INSTRUCTION.match(text)
    if parts is None:
        return None
    call, _, shape = parts["rest"].rpartition(" -> ")
    made = types[parts["name"]] = _type(shape)
    name = parts["op"]
    if name in _IDLE or name.startswith(("@", "check_context")):
        return None
    symbol = _SYMBOL.search(call)
    op = normal(symbol[1] if symbol else name.rpartition("::")[2])
    words = op.removeprefix("mlir_").removesuffix("_kernel")
    arguments = call.partition("](")[2] if call.startswith("[") else call[1:]
    read = [types.get(argument, "") for argument in arguments.removesuffix(")").split(",")]
    return Kernel(
        provider=PROVIDER,
        op=op,
        role="move" if name.startswith("hip::") else _role(words),
        precision=next((t for t in read if t in _FLOATS or t == "int8"), made),
        absorbs=_absorbs(words, by_word),
    )


def _type(shape: str) -> str:
    """``fp16`` of ``half_type, {8, 64}, {64, 1}``; of a tuple the first."""
    found = re.search(r"(\w+?)_type\b", shape)
    word = found[1] if found else ""
    return "fp8" if word.startswith("fp8") else _TYPES.get(word, word)


def _role(words: str) -> str:
    parts = set(words.split("_"))
    if parts <= _MOVES:
        return "move"
    return "layout" if parts <= _MOVES | _LAYOUT else "compute"


def _absorbs(words: str, by_word: Mapping[str, str]) -> tuple[str, ...]:
    """The source's op types that a kernel's name is made of: MIGraphX names what it fused.

    What it took apart itself (a ``Gelu``, say) goes by the names of the parts, which are left out
    where the source has no such op.
    """
    found, parts = [], words.split("_")
    while parts:
        for length in range(min(_LONGEST_WORD, len(parts)), 0, -1):
            op = _op_type("".join(parts[:length]), by_word)
            if op or length == 1:
                found += [op] if op and onnx_role(op) == "compute" else []
                parts = parts[length:]
                break
    return tuple(sorted(found))


def _op_type(word: str, by_word: Mapping[str, str]) -> str:
    names = (*(op.lower() for op in _ALIASES.get(word, ())), word)
    return next((by_word[name] for name in names if name in by_word), "")


__all__ = ["END_OF_RUN", "PROVIDER", "VARIABLE", "uses"]
